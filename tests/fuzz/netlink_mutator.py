"""Changes rtnetlink messages as messages: bytes alone would seldom get past the first length.

A message is cut into its header, its fixed part and its attributes; one of these is changed, and
the lengths are made right again, or, now and then, are made to lie.
"""

import random
import struct
from collections.abc import Callable

from hostrouting.host.netlink.frames import HEADER_LENGTH, header

#: The fixed part after the header, by the kind of message: link, address, route, neighbour, rule,
#: filter; an error's.
_FIXED = {
    16: 16,
    17: 16,
    20: 8,
    21: 8,
    24: 12,
    25: 12,
    28: 12,
    29: 12,
    32: 12,
    33: 12,
    44: 20,
    2: 20,
}
_attribute = struct.Struct("=HH")
_LIES = -17, -4, -1, 1, 3, 4, 1000, 1 << 16
_NUMBERS = (
    0,
    1,
    4,
    7,
    8,
    0x7F,
    0xFF,
    0x100,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)


def mutate(data: bytes, most: int, seed: int, mutate_bytes: Callable[[bytes, int], bytes]) -> bytes:
    """Another input like `data`, at most `most` bytes long; `mutate_bytes` is the fuzzer's own way
    to change bytes.
    """
    rng = random.Random(seed)
    messages = messages_of(data)
    if not messages or rng.random() < 0.1:
        return bytes(mutate_bytes(data, most))[:most]
    position = rng.randrange(len(messages))
    change = rng.randrange(10)
    if change == 0:
        messages.insert(position, rng.choice(messages))
    elif change == 1 and len(messages) > 1:
        del messages[position]
    else:
        messages[position] = _changed(messages[position], rng, mutate_bytes)
    return b"".join(messages)[:most]


def messages_of(data: bytes) -> list[bytes]:
    """Cut the messages apart, even where a length lies."""
    found, offset = [], 0
    while offset + HEADER_LENGTH <= len(data):
        length = max(HEADER_LENGTH, struct.unpack_from("=I", data, offset)[0])
        found.append(data[offset : offset + length])
        offset += length + 3 & ~3
    return found


def _changed(
    message: bytes, rng: random.Random, mutate_bytes: Callable[[bytes, int], bytes]
) -> bytes:
    _, kind, flags, sequence, port = header.unpack_from(message)
    size = HEADER_LENGTH + _FIXED.get(kind, 12)
    fixed, attributes = message[HEADER_LENGTH:size], _attributes(message[size:])
    choice = rng.randrange(9)
    if choice == 0:
        kind = rng.choice((*_FIXED, 1, 3, 4, kind ^ 1 << rng.randrange(16)))
    elif choice == 1:
        flags ^= 1 << rng.randrange(16)
    elif choice == 2 or not attributes:
        fixed = bytes(mutate_bytes(fixed, max(1, len(fixed))))
    elif choice == 3:
        attributes.insert(rng.randrange(len(attributes)), rng.choice(attributes))
    elif choice == 4:
        del attributes[rng.randrange(len(attributes))]
    else:
        place = rng.randrange(len(attributes))
        number, payload = attributes[place]
        another = rng.choice((number ^ 0x8000, number ^ 0x4000, rng.randrange(64))), payload
        sized = number, struct.pack("=I", rng.choice(_NUMBERS))
        mutated = number, bytes(mutate_bytes(payload, max(64, len(payload))))
        attributes[place] = rng.choice((another, sized, mutated, mutated))
    packed = fixed + b"".join(_packed(number, payload, rng) for number, payload in attributes)
    length = HEADER_LENGTH + len(packed) + _lie(rng, 4) & 0xFFFFFFFF
    return header.pack(length, kind & 0xFFFF, flags & 0xFFFF, sequence, port) + packed


def _packed(number: int, payload: bytes, rng: random.Random) -> bytes:
    length = min(max(4 + len(payload) + _lie(rng, 32), 0), 0xFFFF)
    return _attribute.pack(length, number) + payload[:0xFFF0] + bytes(-len(payload) % 4)


def _lie(rng: random.Random, one_in: int) -> int:
    """Return by how much a length lies, which one in so many does."""
    return 0 if rng.randrange(one_in) else rng.choice(_LIES)


def _attributes(packed: bytes) -> list[tuple[int, bytes]]:
    found, offset = [], 0
    while offset + 4 <= len(packed):
        length, number = _attribute.unpack_from(packed, offset)
        if length < 4:
            break
        found.append((number, packed[offset + 4 : offset + length]))
        offset += length + 3 & ~3
    return found
