"""Architecture `mamba`: Mamba 1 (arXiv:2312.00752).

Enters: metadata under `mamba.*` and tensors under GGUF's names. Leaves: graphs. Step 5. No attention: every layer
carries a state of fixed size along a sequence. Per layer: norm, one product to a path and its gate, a short causal
convolution, a scan whose step size and input and output vectors depend on the token, gate, product back, residual.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from polyseq.graph import RS, CacheLayer, Graph, GraphBuilder, RsLayer, Value, Wanted
from polyseq.graph.ops import Act, Linear, Mul
from polyseq.graph.recurrent_ops import Conv, SelectiveScan
from polyseq.models.architecture import Architecture, Hparams
from polyseq.models.decoder import ACCEPTS, POOLINGS, DecoderBuilder
from polyseq.models.metadata import Metadata
from polyseq.models.sizes import MOST, conv_kernel, outer_sizes
from polyseq.weights.weights import Weights


@dataclass(frozen=True, slots=True)
class Mamba:
    """A model of architecture `mamba`."""

    hparams: Hparams
    rms_eps: float
    d_conv: int  # kernel of the convolution
    d_inner: int
    d_state: int
    dt_rank: int
    weights: Weights
    name: str = "mamba"
    accepts: frozenset[str] = ACCEPTS
    takes_spans: bool = False
    poolings: frozenset[str] = POOLINGS
    n_pos: int = 1

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], weights: Weights) -> Self:
        """Pure. See `Architecture.from_metadata`."""
        meta = Metadata(metadata, "mamba")
        meta.only("ssm.dt_b_c_rms", False)
        model = cls(
            hparams=outer_sizes(meta, weights),
            rms_eps=meta.positive("attention.layer_norm_rms_epsilon"),
            d_conv=conv_kernel(meta, "ssm.conv_kernel"),
            d_inner=meta.count("ssm.inner_size", at_most=MOST),
            d_state=meta.count("ssm.state_size", at_most=MOST),
            dt_rank=meta.count("ssm.time_step_rank", at_most=MOST),
            weights=weights,
        )
        model.build(Wanted(hidden=True))  # checks every tensor's shape
        return model

    @property
    def cache_layers(self) -> tuple[CacheLayer | None, ...]:
        """[n_layer] the convolution's last inputs and the scan's state."""
        state = RsLayer((("conv", (self.d_inner, self.d_conv - 1)), ("ssm", (self.d_inner, self.d_state))))
        return (state,) * self.hparams.n_layer

    def build(self, wanted: Wanted) -> Graph:
        """Pure. See `Architecture.build`."""
        g = DecoderBuilder(self.weights, self.hparams, self.rms_eps, wanted)
        x = g.embed()
        for il in range(self.hparams.n_layer):
            g.layer_input(il, x)
            h = g.norm(f"blk.{il}.attn_norm", x)
            h = self._mixer(g, il, h)
            x, h = g.out_rows(il, x, h)
            x = g.add(x, h)
        return g.finish(x, norm="output_norm")

    def build_shift(self, il: int) -> Graph:
        """Pure. See `Architecture.build_shift`: a state knows no positions."""
        return GraphBuilder(self.weights).build()

    def _mixer(self, g: DecoderBuilder, il: int, h: Value) -> Value:
        d_inner, d_state, dt_rank = self.d_inner, self.d_state, self.dt_rank
        both = g.linear(f"blk.{il}.ssm_in", h, 2 * d_inner)
        path, gate = g.columns(both, d_inner, d_inner)
        kernel = g.weight(f"blk.{il}.ssm_conv1d.weight", d_inner, self.d_conv)
        path = g.apply(Conv(il, self.d_conv), path, kernel, g.weight(f"blk.{il}.ssm_conv1d.bias", d_inner), RS)
        path = g.apply(Act("silu"), path)
        dt, b, c = g.columns(g.linear(f"blk.{il}.ssm_x", path, dt_rank + 2 * d_state), dt_rank, d_state, d_state)
        weight, bias = g.weight(f"blk.{il}.ssm_dt.weight", d_inner, dt_rank), g.weight(f"blk.{il}.ssm_dt.bias", d_inner)
        dt = g.apply(Act("softplus"), g.apply(Linear(), dt, weight, bias))
        a, d = g.weight(f"blk.{il}.ssm_a", d_inner, d_state), g.weight(f"blk.{il}.ssm_d", d_inner)
        path = g.apply(SelectiveScan(il), path, dt, a, b, c, d, RS)
        path = g.apply(Mul(), path, g.apply(Act("silu"), gate))
        return g.linear(f"blk.{il}.ssm_out", path, self.hparams.n_embd)


ARCHITECTURE: type[Architecture] = Mamba
