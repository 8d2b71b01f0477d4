"""Runs a program as Python itself would; but errors of ours end it with one line.

    run_application.py APP [ARGS]      the file APP
    run_application.py                 what is on standard input, with `spark` and `sc` there

Spark's driver starts this file. The program becomes this module, `__main__`: what it defines is
sent to workers as from any program.
"""

from aerobee.pipeline.launch.inside_spark import run_application

run_application()
