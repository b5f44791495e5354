"""Messages of open_inference.proto and status.proto as classes, in a pool of their own.

Rule of this file: the pool is not protobuf's default one. A client of the same protocol in this process, Triton's
say, puts messages of the same names there.
"""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

from .stubs import DESCRIPTORS

__all__ = ["HEALTH", "INFERENCE", "filled", "message_class"]

INFERENCE, HEALTH = "inference", "grpc.health.v1"
_POOL = descriptor_pool.DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file:
    _POOL.AddSerializedFile(_file.SerializeToString())


def message_class(name: str, package: str = INFERENCE) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{package}.{name}"))


def filled(name: str, content: object) -> Any:
    """A message with the content that HTTP has as JSON; what the message has no field for is left out."""
    text = msgspec.json.encode(content)
    return json_format.Parse(text, message_class(name)(), ignore_unknown_fields=True)
