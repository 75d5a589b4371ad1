# mypy: disable-error-code="no-untyped-def,no-untyped-call,no-any-return,untyped-decorator"
# (Triton's decorator and the values inside a kernel have no Python types.)
"""The device code of the GPU path, in Triton: which weights a program touches, its draws, and the update itself.

Every kernel runs once for all tensors of all teachers of a bank. Tables in device memory hold one entry per tensor
(addresses, sizes, stream tags), `tiles` a pair (tensor, index of the tile in it), and `rules` a row per teacher that
moves. The programs of a tile follow each other, teacher after teacher: what the first reads of the student the others
find in the cache. The draws are those of `sts_core.masks`, which specifies them. Only `sts_core.kernels.triton` imports
this module, since importing Triton takes a while.

All offsets are int32: `gpu.claim` leaves larger tensors to the reference kernel.
"""

import triton
import triton.language as tl

from sts_core import masks

TILE = tl.constexpr(2048)  # weights of a program: 128 threads make one Philox call each for 16 chunks
UNITS = tl.constexpr(1024)  # units of a program that draws flags
BLOCK = tl.constexpr(masks.BLOCK)  # weights of a program that draws gaps
_CALLS_AT_ONCE = tl.constexpr(64)  # Philox calls of a round of gaps: 256 draws, half of what p = .97 needs
_CALLS_PER_BLOCK = tl.constexpr(masks.CALLS_PER_BLOCK)
_NUM_GAPS = tl.constexpr(masks.NUM_GAPS)
_NUM_BISECTIONS = tl.constexpr(masks.NUM_GAPS.bit_length() - 1)
_LANES = tl.constexpr(masks.LANES)
_CHUNKS = tl.constexpr(2048 // masks.CHUNK)

FROM_TEACHER = tl.constexpr(0)  # which end of the way the formula of an update starts from, or that it copies
FROM_STUDENT = tl.constexpr(1)
COPY = tl.constexpr(2)
COLUMNS = tl.constexpr(
    6
)  # of a row of `rules`: teacher, one of these three, coefficient, and three numbers of a kernel

# Values that change from update to update must not lead to a new compilation when they are 1 or a multiple of 16.
_NUMBERS = ["num_rules", "num_tensors", "num_flags", "step", "seed"]


@triton.jit
def _four_words(position, tag, step, seed):
    """Philox4x32-10 at [N] positions of a stream: uint32 [N, 4]."""
    w0, w1, w2, w3 = tl.philox(
        seed, position.to(tl.uint32), tag.to(tl.uint32), (tag >> 32).to(tl.uint32), step.to(tl.uint32)
    )
    # join adds a last dim of two, so the words come out as [N, 2, 2] with word = 2·i + j
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [position.shape[0], 4])


@triton.jit
def _tile_of_program(tiles, num_rules):
    """(tensor, index of the tile in the tensor, number of the rule)"""
    program = tl.program_id(0)
    entry = tiles + 2 * (program // num_rules)
    return tl.load(entry), tl.load(entry + 1), program % num_rules


@triton.jit
def _size(sizes, tensor, skip):
    """The weights of a tensor; none if the flag says that this update does not take place."""
    return tl.where(tl.load(skip) != 0, 0, tl.load(sizes + tensor))


@triton.jit
def _addresses(teachers, students, rule, num_tensors, tensor, student_type: tl.constexpr):
    """The two pointers of a tensor."""
    teacher = tl.load(teachers + tl.load(rule) * num_tensors + tensor).to(tl.pointer_type(tl.float32))
    return teacher, tl.load(students + tensor).to(tl.pointer_type(student_type))


@triton.jit
def _pull(teacher, student, updated, rule):
    """θᵀ ← m·θᵀ + (1 − m)·θˢ where `updated`, as torch.lerp rounds it: one end + coefficient·(θˢ − θᵀ) in one fma."""
    start, coefficient = tl.load(rule + 1), tl.load(rule + 2).to(tl.int32).to(tl.float32, bitcast=True)
    moved = tl.load(student, mask=updated).to(tl.float32)
    if start != COPY:  # m = 0 copies: the formula would not let go of the teacher's NaN and infinities
        old = tl.load(teacher, mask=updated)
        difference = moved - old
        factor = tl.full(difference.shape, coefficient, tl.float32)
        moved = tl.fma(factor, difference, tl.where(start == FROM_TEACHER, old, moved))
    tl.store(teacher, moved, mask=updated)


@triton.jit
def _pull_tile(teacher, student, begin, size, rule, aligned: tl.constexpr):
    """All weights of a tile. Accesses are vectors of 16 bytes where addresses allow it and no mask is needed."""
    offset = begin + tl.arange(0, TILE)
    if begin + TILE > size:
        _pull(teacher + offset, student + offset, offset < size, rule)
    elif aligned:
        _pull(tl.multiple_of(teacher + offset, 16), tl.multiple_of(student + offset, 16), None, rule)
    else:
        _pull(teacher + offset, student + offset, None, rule)


@triton.jit(do_not_specialize=_NUMBERS)
def draw_units(
    flags, counts, tiles, first_unit, first_rows, tags, rules, num_rules, num_tensors, num_flags, step, seed
):
    """flags[first_unit[e] + r - first_rows[e]] = 1 if unit r is updated; word r % 4 of position r // 4 decides.

    An entry e is a tensor under one of the granularities in use; a rule draws in those of its own.
    """
    entry, tile, number = _tile_of_program(tiles, num_rules)
    rule = rules + number * COLUMNS
    if tl.load(rule + 3) == entry // num_tensors:
        position = tile * (UNITS // 4) + tl.arange(0, UNITS // 4)
        words = tl.reshape(_four_words(position, tl.load(tags + entry), step, seed), [UNITS])
        unit = tile * UNITS + tl.arange(0, UNITS) - tl.load(first_rows + entry)
        updated = (words.to(tl.int64) >= tl.load(rule + 4)).to(tl.uint8)
        inside = (unit >= 0) & (unit < tl.load(counts + entry))
        tl.store(flags + number * num_flags + tl.load(first_unit + entry) + unit, updated, mask=inside)


@triton.jit(do_not_specialize=_NUMBERS)
def update_units(
    teachers, students, sizes, tiles, skip, rules, num_rules, num_tensors, flags, first_unit, unit_sizes, num_flags,
    student_type: tl.constexpr, aligned: tl.constexpr,
):  # fmt: skip
    """Layers, modules and channels: a unit is a run of `unit_sizes` weights in memory, channels_last or not.

    Without a granularity (-1) p = 0, and the tensor is one unit that is always updated.
    """
    tensor, tile, number = _tile_of_program(tiles, num_rules)
    rule = rules + number * COLUMNS
    teacher, student = _addresses(teachers, students, rule, num_tensors, tensor, student_type)
    granularity = tl.load(rule + 3)
    entry, drawn = granularity * num_tensors + tensor, granularity >= 0
    begin, size = tile * TILE, _size(sizes, tensor, skip)
    unit_size = tl.load(unit_sizes + entry, mask=drawn, other=2147483647)
    flag = flags + number * num_flags + tl.load(first_unit + entry, mask=drawn, other=0)
    unit = begin // unit_size
    if (tl.minimum(begin + TILE, size) - 1) // unit_size == unit:  # one unit fills the tile: often nothing to do
        if tl.load(flag + unit, mask=drawn, other=1) != 0:
            _pull_tile(teacher, student, begin, size, rule, aligned)
    else:
        offset = begin + tl.arange(0, TILE)
        updated = tl.load(flag + offset // unit_size, mask=offset < size, other=0) != 0
        _pull(teacher + offset, student + offset, updated, rule)


@triton.jit
def _memory_offset(index, row, channels):
    """Where the weight with a row-major index lies: in channels_last tensors dim 1 is innermost within a row."""
    if channels > 1:
        inside = index % row
        spatial = row // channels
        index = index - inside + (inside % spatial) * channels + inside // spatial
    return index


@triton.jit
def _updated_neurons(tile, tag, tie_tag, both, one, none, step, seed):
    """Which weights of a tile are updated, in row-major order: `masks.neuron_masks`."""
    position = tile * (_CHUNKS * _LANES) + tl.arange(0, _CHUNKS * _LANES)
    words = _four_words(position, tag, step, seed)
    halves = tl.join(words & 0xFFFF, words >> 16).to(tl.int64)  # [positions, 4, 2]
    tied = (halves == (both >> 32)) | (halves == (one >> 32)) | (halves == (none >> 32))
    # Without a tie the upper 16 bits decide whatever the lower 32 are, so zeros do for almost every program.
    value = halves << 32
    if tl.sum(tied.to(tl.int32)) > 0:
        even, odd = _four_words(2 * position, tie_tag, step, seed), _four_words(2 * position + 1, tie_tag, step, seed)
        value = value | tl.join(even, odd).to(tl.int64)
    first = value >= one
    second = (value >= both) ^ first ^ (value >= none)
    pairs = tl.join(first.to(tl.int8), second.to(tl.int8))  # [positions, 4 words, 2 halves, 2 weights of a pair]
    in_order = tl.permute(tl.reshape(pairs, [_CHUNKS, _LANES, 16]), [0, 2, 1])
    return tl.reshape(in_order, [TILE]) != 0


@triton.jit(do_not_specialize=_NUMBERS)
def update_neurons_dense(
    teachers, students, sizes, tiles, skip, rules, num_rules, num_tensors, rows, channels, firsts, tags, tie_tags,
    step, seed, student_type: tl.constexpr,
):  # fmt: skip
    """Single weights, p below `masks.SPARSE_FROM`: a draw for each pair of weights."""
    tensor, tile, number = _tile_of_program(tiles, num_rules)
    rule = rules + number * COLUMNS
    teacher, student = _addresses(teachers, students, rule, num_tensors, tensor, student_type)
    tag, tie_tag = tl.load(tags + tensor), tl.load(tie_tags + tensor)
    both, one, none = tl.load(rule + 3), tl.load(rule + 4), tl.load(rule + 5)
    index, first = tile * TILE + tl.arange(0, TILE), tl.load(firsts + tensor)
    inside = (index >= first) & (index - first < _size(sizes, tensor, skip))
    updated = _updated_neurons(tile, tag, tie_tag, both, one, none, step, seed) & inside
    offset = _memory_offset(index - first, tl.load(rows + tensor), tl.load(channels + tensor))
    _pull(teacher + offset, student + offset, updated, rule)


@triton.jit
def _gap(words, thresholds):
    """#{j : word < thresholds[j]}, by bisection: the thresholds descend."""
    gap = tl.where(words < tl.load(thresholds + _NUM_GAPS - 1), _NUM_GAPS, 0)
    for level in tl.static_range(1, _NUM_BISECTIONS + 1):
        probe = tl.minimum(gap + (_NUM_GAPS >> level), _NUM_GAPS)
        gap = tl.where(words < tl.load(thresholds + probe - 1), probe, gap)
    return gap


@triton.jit(do_not_specialize=_NUMBERS)
def update_neurons_sparse(
    teachers, students, sizes, tiles, skip, rules, num_rules, num_tensors, rows, channels, firsts, tags, thresholds,
    step, seed, student_type: tl.constexpr,
):  # fmt: skip
    """Single weights, large p: a program finds the updated weights of a block by their gaps, many draws at once."""
    tensor, block, number = _tile_of_program(tiles, num_rules)
    rule = rules + number * COLUMNS
    teacher, student = _addresses(teachers, students, rule, num_tensors, tensor, student_type)
    thresholds += number * _NUM_GAPS
    row, channel, tag = tl.load(rows + tensor), tl.load(channels + tensor), tl.load(tags + tensor)
    first = tl.load(firsts + tensor) - block * BLOCK  # of the weights that are here
    length = tl.minimum(first + _size(sizes, tensor, skip), BLOCK)
    position = block * _CALLS_PER_BLOCK + tl.arange(0, _CALLS_AT_ONCE)
    decided = length * 0  # weights of the block that are behind us
    while decided < length:
        words = tl.reshape(_four_words(position, tag, step, seed), [4 * _CALLS_AT_ONCE]).to(tl.int64)
        gap = _gap(words, thresholds)
        advance = tl.minimum(gap + 1, _NUM_GAPS)  # the longest gap updates nothing: the next draw starts from there
        index = decided + tl.cumsum(advance, 0) - 1
        updated = (gap < _NUM_GAPS) & (index >= first) & (index < length)
        offset = _memory_offset(index - first, row, channel)
        _pull(teacher + offset, student + offset, updated, rule)
        decided += tl.sum(advance)
        position += _CALLS_AT_ONCE
