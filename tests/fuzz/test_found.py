"""Programs on which jit once differed from eager, shrunk: each stays right.

An entry is the family (exact: bit for bit; smooth: to a tolerance), the inputs (shape, dtype, layout), the body, the results.
"""

import pytest

import thermit
from tests.fuzz.compare import fault
from tests.fuzz.programs import Program

FOUND = [
    # pad over concat: an index that is sure to be outside
    ("exact", [((1, 17), "int8", "plain")], "v0 = torch.stack([x0, x0], -1); v1 = F.pad(v0, (1, 0, -1, 2)); v2 = v1 % (v1 * 0 + 3)", "v2"),
    ("exact", [((2, 3), "int8", "plain")], "v0 = torch.cat([x0, x0]) * 1; v1 = F.pad(v0, (1, 2))", "v1"),
    # a reduction over an axis of size 1 is no loop, so it makes no row
    ("exact", [((9, 1), "int16", "strided")], "v0 = x0.any(-1); x0.select(-1, 0).mul_(3); v2 = x0 * v0; v6 = v2 - x0", "v6"),
    ("smooth", [((5, 1), "float32", "plain")],
     "v0 = x0.amax((1, ), keepdim=True); v3 = F.gelu(v0 + v0, approximate='tanh').cumsum(-1); v6 = F.pad(v0, (1, 2)).unfold(0, 2, 1)", "v3, v6"),
    # several stores join a kernel as its rows: what the second one reads was lost
    ("smooth", [((4, 3, 5), "float32", "plain"), ((3,), "float32", "plain"), ((3,), "float32", "plain")],
     "v0 = F.batch_norm(x0, x1, x2.abs_(), training=True); v1 = x1 * 2", "v0, v1"),
    # a row kept by the loop of a reduction that is as deep as the second of the loops over rows: one place was used for all of it
    ("smooth", [((1, 9, 2, 32), "float64", "plain")], "v0 = F.layer_norm(x0, (32,)); v1 = F.batch_norm(v0, None, None, training=True)", "v1"),
    ("smooth", [((5, 4, 17), "float64", "plain")],
     "v0 = F.softmax(x0, -1); v1 = (v0 - v0.mean((1, 2), keepdim=True)).exp(); v2 = v1 / v1.sum((1, 2), keepdim=True)", "v2"),
    # a scan along the rows of a reduction that is returned too
    ("smooth", [((7, 17), "float64", "plain")], "v0 = x0.amin(-1); v1 = v0.cumsum(0)", "v0, v1"),
    ("smooth", [((7, 5, 17), "float32", "plain")], "v0 = x0.sum(-1); v1 = v0 * 2; v2 = v1.cumsum(0); v3 = v1.cumsum(1)", "v0, v1, v2, v3"),
    # what a loop inside a vector loop reads cannot be fetched by the outer one
    ("smooth", [((31, 15, 3), "float32", "transposed")], "v0 = F.batch_norm(x0, None, None, training=True)", "v0"),
    # an offset that is one for all lanes, though it is data of data
    ("exact", [((2,), "float32", "plain")],
     "v0 = x0.gather(0, torch.ones_like(x0, dtype=torch.int64).cumsum(0).flip(0) - 1); v1 = v0.roll(3, 0)[torch.tensor([-2, -2])]", "v1"),
    # which axes roll joins again
    ("exact", [((8, 1, 1), "int32", "transposed"), ((8, 31, 7), "bfloat16", "plain")],
     "v0 = x0.to(torch.float32).unfold(-2, 1, 1); v1 = torch.minimum(x0, v0) + 0; v2 = v1.roll(-2, -3)", "v2"),
    # a smaller result over loops that a reduction depends on only through a quotient (the group of a channel)
    ("smooth", [((5, 8), "float32", "expanded")], "v0 = F.group_norm(x0, 2, x0[0], x0[0]); v1 = torch.stack([v0, x0 * 2], -2)", "v0, v1"),
    # the results of index_add and index_copy are in row-major order
    ("exact", [((1, 1, 9), "uint8", "strided")], "v2 = x0.permute([1, 2, 0]); v4 = v2.index_copy(0, torch.tensor([0]), v2[:1])", "v4"),
    ("exact", [((1, 1, 15, 1), "bool", "transposed")], "v0 = x0.index_copy(0, torch.tensor([0]), x0[:1])", "v0"),
    # loops over parts of an axis of which some are not read (a column of what was spread) were merged with others, and more of them read
    ("exact", [((1, 8, 1, 6), "float32", "plain")],
     "v0 = F.interpolate(x0, scale_factor=2) + 3; v1 = v0.reshape(1, 8, 1, 2, 6, 2).permute(0, 1, 3, 5, 2, 4).contiguous() + 1", "v1"),
    ("exact", [((2, 3, 8, 8), "float32", "plain")],
     "v0 = F.interpolate(x0, scale_factor=2) + 3; v1 = v0.reshape(2, 3, 8, 2, 8, 2).permute(0, 1, 3, 5, 2, 4).contiguous() + 1", "v1"),
    ("exact", [((8, 6), "float32", "plain")],
     "v0 = x0[:, :, None].expand(-1, -1, 2).reshape(8, 1, 12) + 3; v1 = v0.expand(-1, 2, -1) + 1; "
     "v2 = v1.reshape(8, 2, 6, 2).permute(0, 1, 3, 2).contiguous() + 1", "v2"),
    ("exact", [((8, 4), "float32", "plain")],
     "v0 = x0.reshape(8, 2, 1, 2).expand(8, 2, 6, 2).reshape(8, 2, 12) + 3; v1 = v0.reshape(8, 2, 6, 2).permute(0, 1, 3, 2).contiguous() + 1", "v1"),
    # the second part of a concatenation backwards: of 18 i - j - 19 the multiples of 18 were divided apart, and what was left is negative
    ("exact", [((3, 2, 3), "float32", "plain")],
     "v0 = torch.cat([x0, x0 + 1]).reshape(2, 18); v1 = torch.cat([v0, v0 + 1]) + 2; v2 = v1.flip(1)", "v2"),
]  # fmt: skip


@pytest.mark.parametrize("entry", FOUND, ids=[str(i) for i in range(len(FOUND))])
def test_found(entry):
    family, inputs, body, results = entry
    made = Program(family, inputs, 0, body.split("; "), results.split(", "))
    assert (how := fault(made, thermit.jit)) is None, f"{how}\n{made.source}"
