/* ref_element.c: one element of any type as a double, and back. The 16-bit floats are done by the definition of their
 * formats, with ldexp and rint, so that nothing is shared with the fast conversions that are tested against this. */
#include "ref.h"

/* A float of `bits` stored mantissa bits and exponents from `low` (of the smallest normal number) to `high`. */
typedef struct format {
    int bits, low, high;
} format;

static const format bf16 = {7, -126, 127}, f16 = {10, -14, 15};

static double widen(format f, unsigned h) {
    int exponent = (int)(h >> f.bits & ((1u << (15 - f.bits)) - 1));
    double fraction = ldexp((double)(h & ((1u << f.bits) - 1)), -f.bits), value;
    if (exponent == f.high - f.low + 2)
        value = fraction == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        value = ldexp(fraction, f.low);
    else
        value = ldexp(1 + fraction, exponent - 1 + f.low);
    return h & 0x8000 ? -value : value;
}

static unsigned narrow(format f, double v) {
    unsigned sign = signbit(v) ? 0x8000 : 0, infinity = (unsigned)(f.high - f.low + 2) << f.bits;
    int exponent;
    if (isnan(v)) return sign | infinity | 1u << (f.bits - 1);
    if (isinf(v)) return sign | infinity;
    if (v == 0) return sign;
    frexp(v, &exponent); /* |v| in [2^(exponent-1), 2^exponent) */
    exponent = exponent - 1 < f.low ? f.low : exponent - 1;
    double units = rint(ldexp(fabs(v), f.bits - exponent)); /* in units of the last place; at most 2^(bits+1) */
    double rounded = ldexp(units, exponent - f.bits);
    if (rounded >= ldexp(1, f.high + 1)) return sign | infinity;
    if (rounded < ldexp(1, f.low)) return sign | (unsigned)units;
    frexp(rounded, &exponent);
    exponent--;
    return sign | (unsigned)(exponent - f.low + 1) << f.bits |
           (unsigned)ldexp(rounded - ldexp(1, exponent), f.bits - exponent);
}

double splk_ref_get(const void *p, spl_dtype t, int64_t i) {
    switch (t) {
    case SPL_F64: return ((const double *)p)[i];
    case SPL_F32: return ((const float *)p)[i];
    case SPL_BF16: return widen(bf16, ((const uint16_t *)p)[i]);
    case SPL_F16: return widen(f16, ((const uint16_t *)p)[i]);
    case SPL_I64: return (double)((const int64_t *)p)[i];
    case SPL_I32: return ((const int32_t *)p)[i];
    case SPL_U8: return ((const uint8_t *)p)[i];
    case SPL_BOOL: return ((const uint8_t *)p)[i] != 0;
    default: return NAN;
    }
}

static double clamped(double v, double low, double high) {
    if (isnan(v)) return 0;
    return v < low ? low : v > high ? high : trunc(v);
}

void splk_ref_put(void *p, spl_dtype t, int64_t i, double v) {
    switch (t) {
    case SPL_F64: ((double *)p)[i] = v; break;
    case SPL_F32: ((float *)p)[i] = (float)v; break;
    case SPL_BF16: ((uint16_t *)p)[i] = (uint16_t)narrow(bf16, v); break;
    case SPL_F16: ((uint16_t *)p)[i] = (uint16_t)narrow(f16, v); break;
    case SPL_I64:
        ((int64_t *)p)[i] = v >= 9223372036854775808.0 ? INT64_MAX : (int64_t)clamped(v, -9223372036854775808.0, v);
        break;
    case SPL_I32: ((int32_t *)p)[i] = (int32_t)clamped(v, INT32_MIN, INT32_MAX); break;
    case SPL_U8: ((uint8_t *)p)[i] = (uint8_t)clamped(v, 0, 255); break;
    case SPL_BOOL: ((uint8_t *)p)[i] = v != 0; break;
    default: break;
    }
}
