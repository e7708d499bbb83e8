/* activation.h: GELU and SiLU for kernels, to a few units in the last place also where the value is tiny.
 *
 * Both forms of GELU are x times a probability that vanishes exponentially for negative x, so the argument of the
 * exponential must be better than a float: it is formed in double (a handful of operations) and used in two parts. */
#ifndef SPLK_ACTIVATION_H
#define SPLK_ACTIVATION_H
#include "gpu.h"

/* x / (1 + e^-z) */
SPLK_DEV float splk_times_sigmoid(float x, double z) {
    if (x != x || z > 88) return x;
    if (z < -88) return x * expf((float)z); /* e^-z is past the end of f32; what is left here is denormal, or 0 */
    const float high = (float)-z, low = (float)(-z - (double)high);
    const float e = expf(high);
    return x / (1 + (e + e * low));
}
SPLK_DEV double splk_times_sigmoid(double x, double z) { return z < -745 ? x * 0.0 : x / (1 + exp(-z)); }

SPLK_DEV float splk_gelu_erf(float x) { /* x/2 erfc(-x / sqrt 2) */
    const double z = -(double)x * 0.70710678118654752440;
    if (z > 11) return x * 0.0f;
    if (z < -11) return x;
    const float high = (float)z, low = (float)(z - (double)high);
    const float slope = -1.1283791670955126f * expf(-high * high); /* of erfc */
    return 0.5f * x * (erfcf(high) + slope * low);
}
SPLK_DEV double splk_gelu_erf(double x) { return 0.5 * x * erfc(-x * 0.70710678118654752440); }

template <class W> SPLK_DEV W splk_activate(spl_activation act, W x) {
    const double d = (double)x;
    switch (act) { /* 2 sqrt(2 / pi), and that times 0.044715 */
    case SPL_ACT_GELU_TANH: return splk_times_sigmoid(x, d * (1.5957691216057308 + 0.071354816272600 * d * d));
    case SPL_ACT_GELU_ERF: return splk_gelu_erf(x);
    case SPL_ACT_SILU: return splk_times_sigmoid(x, d);
    default: return x;
    }
}

#endif
