#!/usr/bin/env python3
"""Writes the golden values that judge the reference kernels: NumPy in float64, whole arrays at a time.

Run once with NumPy installed: `python3 make_golden.py` in this folder; the files it writes are committed. Nothing here
is shared with the C code. Inputs and weights are given by a formula (see FORMULA) that is exact in any language with
64-bit integers, so that the files hold only what was computed.
"""
import json
import math

import numpy as np

FORMULA = (
    "element i of a tensor is offset + scale * (2 * (z >> 11) / 2^53 - 1), with z from splitmix64: z = seed * 2^32 + i + "
    "0x9E3779B97F4A7C15; z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; z = z ^ z >> 31; "
    "all modulo 2^64"
)


class Inputs:
    """Tensors by formula, remembered for the file."""

    def __init__(self):
        self.specs = {}

    def make(self, name, shape, scale, offset=0.0):
        seed = len(self.specs) + 1
        self.specs[name] = {"shape": list(shape), "seed": seed, "scale": scale, "offset": offset}
        count = int(np.prod(shape))
        with np.errstate(over="ignore"):
            z = np.arange(count, dtype=np.uint64) + np.uint64(seed << 32) + np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
        unit = (z >> np.uint64(11)).astype(np.float64) / 2.0**53
        return (offset + scale * (2 * unit - 1)).reshape(shape)


def write(path, about, config, inputs, outputs):
    def plain(a):  # -inf has no spelling in JSON
        return [None if v == -math.inf else v for v in np.asarray(a, dtype=np.float64).ravel().tolist()]

    document = {
        "about": about,
        "formula": FORMULA,
        "config": config,
        "inputs": inputs.specs,
        "outputs": {k: {"shape": list(v.shape), "data": plain(v)} for k, v in outputs.items()},
    }
    with open(path, "w", encoding="ascii") as file:
        json.dump(document, file, separators=(",", ":"))
        file.write("\n")


ACTIVATIONS = {
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def normalise(x, kind, eps, gamma, beta):
    mean = x.mean(axis=-1, keepdims=True) if kind == "layer" else np.zeros(x.shape[:-1] + (1,))
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)
    y = (x - mean) * rstd * gamma
    return (y if beta is None else y + beta), mean[..., 0], rstd[..., 0]


def rotate(x, theta):
    """x [batch, seq, heads, dim]; complex numbers made of element j and element j + dim/2."""
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    frequency = theta ** (-2 * np.arange(half) / x.shape[-1])
    z = z * np.exp(1j * np.arange(x.shape[1])[:, None] * frequency)[None, :, None, :]
    return np.concatenate([z.real, z.imag], axis=-1)


def attention(q, k, v, scale, mask):
    """q [b,s,h,d], k and v [b,t,g,d], mask [s,t] -> out [b,h,s,d], lse [b,h,s]."""
    k, v = (np.repeat(a, q.shape[2] // k.shape[2], axis=2) for a in (k, v))
    scores = np.where(mask, np.einsum("bshd,bthd->bhst", q, k) * scale, -np.inf)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(scores).sum(axis=-1))
    weights = np.where(mask, np.exp(scores - np.where(np.isinf(lse), 0, lse)[..., None]), 0)
    return np.einsum("bhst,bthd->bhsd", weights, v), lse


def block(path, about, c):
    n = Inputs()
    b, s, e, h, g, d, f = (c[k] for k in ("batch", "seq", "hidden", "heads", "kv_heads", "head_dim", "ffn"))
    out = {}
    x = n.make("x", (b, s, e), 1.5, 0.25)

    def weight(name, rows, cols, bias):
        w = n.make(name, (rows, cols), 1.2 / math.sqrt(cols))
        return w, (n.make(name.replace("w", "b", 1), (rows,), 0.3, 0.05) if bias else None)

    def linear(a, wb):
        y = a @ wb[0].T
        return y if wb[1] is None else y + wb[1]

    beta = c["norm"] == "layer"
    gamma0 = n.make("ln0_gamma", (e,), 0.5, 1.0)
    beta0 = n.make("ln0_beta", (e,), 0.3) if beta else None
    a, out["ln0_mean"], out["ln0_rstd"] = normalise(x, c["norm"], c["eps"], gamma0, beta0)
    if c["interleaved_qkv"]:
        out["linear0"] = linear(a, weight("wqkv", 3 * h * d, e, c["biases"]))
        q, k, v = np.moveaxis(out["linear0"].reshape(b, s, h, 3, d), 3, 0)
    else:
        out["linear0"] = linear(a, weight("wq", h * d, e, c["biases"]))
        out["linear0_k"] = linear(a, weight("wk", g * d, e, c["biases"]))
        out["linear0_v"] = linear(a, weight("wv", g * d, e, c["biases"]))
        q, k, v = out["linear0"].reshape(b, s, h, d), out["linear0_k"].reshape(b, s, g, d), out["linear0_v"].reshape(b, s, g, d)
    if c["rope_theta"]:
        q, k = rotate(q, c["rope_theta"]), rotate(k, c["rope_theta"])
    mask = np.tril(np.ones((s, s), bool)) if c["causal"] else np.ones((s, s), bool)
    out["sdpa_out"], out["sdpa_lse"] = attention(q, k, v, 1 / math.sqrt(d), mask)
    wo, bo = weight("wo", e, h * d, c["biases"])
    out["linear1"] = out["sdpa_out"].transpose(0, 2, 1, 3).reshape(b, s, h * d) @ wo.T
    x1 = x + out["linear1"] + (0 if bo is None else bo)
    gamma1 = n.make("ln1_gamma", (e,), 0.5, 1.0)
    beta1 = n.make("ln1_beta", (e,), 0.3) if beta else None
    a, out["ln1_mean"], out["ln1_rstd"] = normalise(x1, c["norm"], c["eps"], gamma1, beta1)
    up = linear(a, weight("w1", f, e, c["biases"]))
    act = ACTIVATIONS[c["act"]]
    if c["gated"]:
        out["mlp0"], out["mlp0_up"] = linear(a, weight("wg", f, e, c["biases"])), up
        inner = act(out["mlp0"]) * up
    else:
        out["mlp0"] = up
        inner = act(up)
    out["out"] = x1 + linear(inner, weight("w2", e, f, c["biases"]))
    write(path, about, c, n, out)


def window(path, about):
    c = {"batch": 2, "heads": 6, "kv_heads": 2, "seq_q": 13, "seq_k": 15, "head_dim": 5, "scale": 0.7}
    # [q_begin, q_end, k_begin, k_end, kind]: a window of four keys, its start, an inverse-causal part overlapped by a
    # full one, and a last row that sees nothing
    c["slices"] = [[0, 4, 0, 4, 1], [4, 10, 1, 10, 3], [10, 12, 11, 15, 2], [11, 12, 10, 13, 0]]
    n = Inputs()
    q = n.make("q", (c["batch"], c["seq_q"], c["heads"], c["head_dim"]), 1.5)
    k = n.make("k", (c["batch"], c["seq_k"], c["kv_heads"], c["head_dim"]), 1.5)
    v = n.make("v", (c["batch"], c["seq_k"], c["kv_heads"], c["head_dim"]), 1.0, 0.2)
    mask = np.zeros((c["seq_q"], c["seq_k"]), bool)
    for q0, q1, k0, k1, kind in c["slices"]:
        rows, cols = np.arange(q0, q1)[:, None], np.arange(k0, k1)[None, :]
        seen = np.ones((q1 - q0, k1 - k0), bool)
        if kind in (1, 3):
            seen &= cols - k1 <= rows - q1
        if kind in (2, 3):
            seen &= cols - k0 >= rows - q0
        mask[q0:q1, k0:k1] |= seen
    out, lse = attention(q, k, v, c["scale"], mask)
    write(path, about, c, n, {"out": out.transpose(0, 2, 1, 3), "lse": lse})


if __name__ == "__main__":
    GPT = {"batch": 2, "seq": 5, "hidden": 12, "heads": 3, "kv_heads": 3, "head_dim": 4, "ffn": 48, "norm": "layer", "eps": 1e-5,
           "interleaved_qkv": True, "biases": True, "act": "gelu_tanh", "gated": False, "rope_theta": 0, "causal": True}
    LLAMA = {"batch": 2, "seq": 7, "hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2, "ffn": 10, "norm": "rms", "eps": 1e-6,
             "interleaved_qkv": False, "biases": False, "act": "silu", "gated": True, "rope_theta": 10000.0, "causal": True}
    WIDE = dict(LLAMA, seq=5, hidden=12, heads=2, kv_heads=1, head_dim=6, ffn=14, rope_theta=500.0, biases=True)
    ERF = dict(GPT, batch=1, seq=6, ffn=17, act="gelu_erf", causal=False)
    block("gpt_block.json", "GPT block: LayerNorm, head-interleaved QKV with biases, causal, tanh-GELU", GPT)
    block("llama_block.json", "Llama block: RMSNorm, grouped KV heads, RoPE (half pairing), SwiGLU, no biases", LLAMA)
    block("llama_wide_block.json", "Llama block with head_dim 6 (three frequencies), biases and one KV head", WIDE)
    block("erf_block.json", "Full attention, erf-GELU, ffn 17", ERF)
    window("window_attention.json", "Attention over slices: grouped heads, a sliding window, an unseen row")
