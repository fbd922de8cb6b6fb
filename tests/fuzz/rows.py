"""Statements of rows of the lowering table that no other statement draws, one template each: what they do is seldom, what stands around is random.

In a template {a} is a name, {b} one of the same shape and type, {d} an axis, {n} its size, {i} a place on it, {f} a float of {a}'s shape within
0.9 of 0, {order} the axes in random order.
"""

from __future__ import annotations

import torch

from tests.fuzz.choices import Choices


def templates(text: str) -> list[str]:
    return [one.strip() for one in text.replace("\n", " ").split(";") if one.strip()]


WHOLE = templates("""
    {a} << 2; {a} >> 1; 1 << ({a} & 3); 9 >> ({a} & 3); {a} << ({b} & 3); {a} >> ({b} & 7); {a}.bitwise_left_shift({b} & 3);
    {a}.bitwise_right_shift(2); {a} ^ {b}; 5 ^ {a}; {a} | 5; 5 | {a}; 5 & {a}; {a} ^ 3; torch.div({a}, 3, rounding_mode='trunc');
    torch.div({a}, 3, rounding_mode='floor'); torch.div({a}, ({b} & 3) + 1, rounding_mode='trunc'); torch.fmod({a}, 3); 7 % (({a} & 3) + 1);
    torch.fmod({a}, ({b} & 3) + 1); {a}.prod({d}); {a}.cumprod({d}); {a}.nansum({d}); {a}.pow(2); {a} ** 3; torch.ldexp({a}, {a} * 0); {a}.sgn();
    {a} // 2; 5 - {a}; torch.rsub({a}, {b}); {a}.clamp({b} * 0, {b} * 0 + 5); {a}.clamp_min({b}); {a}.clamp_max({b});
    {a}.contiguous().view(-1).put(torch.tensor([0]), {a}.reshape(-1)[:1]); {a}.view({a}.dtype); {a}.contiguous().view(torch.uint8);
    {a}.scatter({d}, torch.zeros_like({a}, dtype=torch.int64), 2, reduce='add');
    {a}.scatter_reduce({d}, torch.zeros_like({a}, dtype=torch.int64), {b}, 'amax'); {a}.index_reduce({d}, torch.tensor([{i}]), {a}, 'amin');
    torch.aminmax({a})[1]; torch.aminmax({a}, dim={d})[0]; {a}.max(); {a}.min(); {a}.min({d})[0]; {a}.max({d})[0];
""")  # of integers
FRACTIONS = templates("""
    {a}.copysign(-1.0); torch.copysign({a}, {b}.nan_to_num(1.0)); torch.fmax({a}, {b}) + 0; torch.fmin({a}, {b}) + 0; torch.fmod({a}, 3);
    torch.heaviside({a}, {b}) + 0; {a}.isposinf(); {a}.isneginf(); F.hardshrink({a}); F.softshrink({a}) + 0; F.threshold({a}, 0.5, -1);
    F.hardswish({a}); F.relu6({a}); F.hardsigmoid({a}); {a}.deg2rad(); {a}.round(decimals=1); torch.nextafter({a}, {b} * 0);
    {a}.clamp(-{b}.abs(), {b}.abs()) + 0; torch.addcdiv({a}, {a} * 0, {b} * 0 + 2); {a}.nan_to_num(1, 2, 3); {a}.sgn(); {a}.conj_physical();
    {a}.max({d})[0] + 0; {a}.max() + 0; {a}.min() + 0; {a}.min({d})[0] + 0; torch.aminmax({a}, dim={d})[1] + 0; {a}.angle().isnan();
""")  # of floats, each rounded once
MOVES = templates("""
    {a}.new_zeros(3, {n});
    {a}.new_ones({n}); torch.diag_embed({a}); {a}.select_scatter({a}.select({d}, {i}), {d}, 0);
    torch.block_diag({a}.reshape(-1)[:3], {a}.reshape(-1)[:2]); {a}.slice_scatter({a}.narrow({d}, 0, 1), {d}, {i}, {i} + 1);
    {a}.split([{i}, {n} - {i}], {d})[1]; torch.unsafe_split({a}, 2, {d})[0]; torch.permute_copy({a}, {order}); torch.unbind_copy({a}, {d})[0];
    torch.expand_copy({a}, (2, *{a}.shape)); torch.slice_copy({a}, {d}, {i}); torch.transpose_copy({a}, 0, {d}); torch.squeeze_copy({a});
    torch.select_copy({a}, {d}, {i}); torch.unsqueeze_copy({a}, {d}); {a}.squeeze((0, {d})); torch.narrow_copy({a}, {d}, {i}, 1);
    torch.unfold_copy({a}, {d}, 1, 1); torch.split_copy({a}, 2, {d})[0]; torch.detach_copy({a}); torch.tril_indices({n} % 9, 4) + 1;
    torch.triu_indices(4, {n} % 9) + 1; {a}.masked_scatter({a} == {a}, {b});
    {a}.masked_fill({a} != {a}, {a}.reshape(-1)[0]); {a}.index_fill({d}, torch.tensor([{i}]), {a}.reshape(-1)[0]); torch.view_copy({a}, [-1]);
    torch.full(({n}, 2), 3); {a}.new_empty_strided((2, 2), (1, 2)).fill_(1); torch.broadcast_tensors({a}, {b})[1] * 1;
""")
STEPS = templates("""
    torch.logical_and({a}, {b}); torch.logical_or({a}, {b}); torch.logical_xor({a}, {b}); {a}.logical_not(); {a}.any(({d},));
    {a}.all(({d},)); {a}.count_nonzero(({d},));
    torch.ops.aten.threshold_backward({a}, {b}, 0.1); torch.ops.aten.leaky_relu_backward({a}, {b}, 0.1, False);
    torch.ops.aten.hardsigmoid_backward({a}, {b}); torch.ops.aten.hardtanh_backward({a}, {b}.nan_to_num(0.0), -1, 1);
    torch.ops.aten.hardswish_backward({a}, {b}.nan_to_num(0.0));
""")  # jumps: only of what is not rounded
SQUARE = templates("""
    {a}.diagonal_scatter({a}.diagonal(), 0); torch.diagonal_copy({a}); torch.t_copy({a}) if {a}.dim() == 2 else {a}.mT * 1;
    {a}.trace() if {a}.dim() == 2 else {a}.sum();
""")  # of two axes and more
MATHEMATICS = templates("""
    {f}.acos(); ({f} + 2.1).acosh(); {f}.asin(); {f}.atanh(); {a}.cosh(); {f}.tan(); {f}.exp2(); ({f} + 1).log10(); ({f} + 1).log2(); {a}.sinc();
    ({f} * 0.4 + 0.5).logit(); F.celu({a}); F.selu({a}); F.hardsigmoid({a}); F.hardswish({a}); F.prelu({a}, {a}.new_ones(1) * 0.2);
    torch.xlogy({a}, {f} + 1); torch.special.xlog1py({a}, {f}); torch.special.entr({f} + 1); {f}.cumprod({d}); torch.lerp({a}, {b}, {f});
    torch.addcdiv({a}, {b}, {f} + 2); torch.logaddexp2({a}, {b}); ({f} + 1) ** {b}; 1.5 ** {a}; torch.dot({a}.reshape(-1), {b}.reshape(-1));
    F.smooth_l1_loss({a}, {b}); F.huber_loss({a}, {b}, delta=0.7); F.binary_cross_entropy({f} * 0.5 + 0.5, {f} * 0.5 + 0.5); F.l1_loss({a}, {b});
    F.binary_cross_entropy_with_logits({a}, {f} * 0.5 + 0.5); F.soft_margin_loss({a}, {f} * 0 + 1); torch.std_mean({a}, {d}, correction=0)[1];
    {a}.norm(1); {a}.norm(2, {d}); {a}.norm(3, ({d},), keepdim=True); {a}.nansum({d}); torch.linspace(-1, 1, {n}, dtype={a}.dtype); {a}.prod({d});
    torch.ops.aten.sigmoid_backward({a}, {f}); torch.ops.aten.tanh_backward({a}, {f}); torch.ops.aten.gelu_backward({a}, {b}); {a}.rad2deg() / 100;
    torch.ops.aten.silu_backward({a}, {b}); torch.ops.aten.mish_backward({a}, {b}); torch.ops.aten.softplus_backward({a}, {b}, 1, 20);
    torch.ops.aten._softmax_backward_data({a}, F.softmax({b}, {d}), {d}, {a}.dtype); torch.ops.aten.elu_backward({a}, 1, 1, 1, False, {b});
    torch.ops.aten._log_softmax_backward_data({a}, F.log_softmax({b}, {d}), {d}, {a}.dtype);
    F.cosine_similarity({a}, {b}, {d});
    torch.ops.aten.logit_backward({a}, {f} * 0.4 + 0.5); torch.ops.aten.mse_loss_backward({a}, {b}, {f}, 0);
    torch.ops.aten.smooth_l1_loss_backward({a}, {b}, {f}, 0, 1.0); F.kl_div({a}, {f} + 1, reduction='batchmean');
    torch.ops.aten.huber_loss_backward({a}, {b}, {f}, 0, 1.0); torch.ops.aten.log_sigmoid_backward({a}, {b}, {b} * 0);
    torch.cdist({a}[None, None].flatten(2), {b}[None, None].flatten(2));
    torch.ops.aten.slice_backward({a}.narrow({d}, {i}, 1), {a}.shape, {d}, {i}, {i} + 1, 1);
    torch.ops.aten.native_dropout_backward({a}, {f} > 0, 2.0);
    torch.ops.aten.select_backward({a}.select({d}, {i}), {a}.shape, {d}, {i});
""")
IMAGES = templates("""
    F.interpolate({a}, scale_factor=2, mode='nearest-exact'); F.interpolate({a}, size=(3, 5), mode='bicubic'); F.instance_norm({a});
    F.interpolate({a}, size=(4, 3), mode='bilinear', align_corners=True); F.adaptive_max_pool2d({a}, (2, 1)); F.unfold({a}, 1);
    F.glu({a}.repeat(1, 2, 1, 1), 1); F.interpolate({a}[None], scale_factor=2, mode='trilinear'); F.avg_pool3d({a}, 1, 2); F.max_pool3d({a}, 1, 2);
    F.channel_shuffle({a}.repeat(1, 2, 1, 1), 2); F.pixel_unshuffle({a}.repeat(1, 1, 2, 2), 2); F.adaptive_avg_pool3d({a}, 1);
    F.pad({a}, (0, 1, 1, 0), mode='replicate'); F.interpolate({a}[None], scale_factor=2);
    F.nll_loss(F.log_softmax({a}, 1), torch.zeros_like({a}[:, 0], dtype=torch.int64)); F.cross_entropy({a}, {a}.argmax(1) * 0);
    F.local_response_norm({a}, 2);
""")  # of four axes
TWO = templates("""
    F.cross_entropy({a}, torch.arange({a}.shape[0]) % {a}.shape[1]); torch.baddbmm({a}[None], {a}[None] @ {a}.mT, {a}[None]);
    {a}.sum(0).addmv({a}.mT, {a}[:, 0]); F.nll_loss(F.log_softmax({a}, 1), torch.arange({a}.shape[0]) % {a}.shape[1]);
    torch.cdist({a}, {a}[:2] + 1); torch.vdot({a}[0], {a}[-1]);
    F.bilinear({a}, {a}, torch.ones(2, {a}.shape[1], {a}.shape[1], dtype={a}.dtype) / 9);
    F.pdist({a}[:3] + torch.arange(3.0)[:{a}.shape[0], None]);
""")  # of two axes


class Rows(Choices):
    def do_row(self):
        r, exact = self.random, self.program.family == "exact"
        a = self.name(lambda t: t.dim() > 0 and t.numel() > 0)
        if a is None:
            return None
        t = self.values[a]
        b = self.name(lambda u: u.dtype == t.dtype and u.shape == t.shape)
        if not {a, b} & self.rough and r.random() < 0.1:
            return self.filled(r.choice(STEPS), a, b), not exact, [a, b]
        drawn = list(MOVES) + (SQUARE if t.dim() > 1 else [])
        if t.dtype.is_floating_point:
            drawn += FRACTIONS if exact else MATHEMATICS * 2 + (IMAGES * 4 if t.dim() == 4 else []) + (TWO * 2 if t.dim() == 2 else [])
        elif t.dtype != torch.bool and exact:
            drawn += WHOLE
        return self.filled(r.choice(drawn), a, b), not exact, [a, b]

    def filled(self, template: str, a: str, b: str) -> str:
        t, r = self.values[a], self.random
        d = self.axis(t)
        order = r.sample(range(t.dim()), t.dim())
        return template.format(a=a, b=b, d=d, n=t.shape[d], i=r.randrange(t.shape[d]), f=f"({a}.sin() * 0.9)", order=order)
