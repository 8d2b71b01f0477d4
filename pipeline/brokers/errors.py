"""What can go wrong between Spark and the brokers, named by what the reader of the error may do.

    PipelineError
      NoSuchTopic       no name server knows the topic
      Unreachable       no name server, or no broker of that name, answered in time
      Refused           a broker answered that this request is not allowed or not possible
      DataLoss          messages that the range should have are gone (option failOnDataLoss)
      BadData           a broker's answer, or a message, cannot be read
      StoreReadError    a store's files cannot be read, or changed meanwhile (files/directory.py)

A wrong option is an `OptionError` (option_parsing.py). Texts name topic, broker and queue, never a
secret.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Base of everything that pipeline/ raises on purpose."""


class NoSuchTopic(PipelineError):
    """No name server knows the topic."""


class Unreachable(PipelineError):
    """Nobody answered, although several tries were made."""


class Refused(PipelineError):
    """A peer answered with a code that repeating the request will not change."""


class DataLoss(PipelineError):
    """Messages of a range that was to be read are no longer there."""


class BadData(PipelineError):
    """Bytes that should be messages are none."""
