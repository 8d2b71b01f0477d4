"""PYTHONSTARTUP of `aerobee pipeline shell`: Python runs it before the first prompt."""

from aerobee.pipeline.launch.inside_spark import open_shell

open_shell(globals())
del open_shell
