"""Wire formats: annotation strings, container environment, configuration.

Every format has golden strings in ``tests/data`` and a round-trip property test.
"""

from testbed.stack.codec.devices import decode_pod_shares, encode_pod_shares, pop_container
from testbed.stack.codec.environment import container_environment, region_name
from testbed.stack.codec.register import decode_register, encode_register, encode_register_text

__all__ = [
    "container_environment",
    "decode_pod_shares",
    "decode_register",
    "encode_pod_shares",
    "encode_register",
    "encode_register_text",
    "pop_container",
    "region_name",
]
