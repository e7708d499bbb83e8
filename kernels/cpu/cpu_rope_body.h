/* cpu_rope_body.h: rotates all heads at local position t in element type T. */

static void SPLK_PASTE(rotate, S)(const spl_rope_args *a, int64_t t, const double *cosines, const double *sines) {
    const int64_t *xs = a->x_strides, *ys = a->y_strides;
    int64_t half = a->head_dim / 2, near = a->half ? 1 : 2, far = a->half ? half : 1;
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->heads; h++) {
            const T *x = (const T *)a->x + b * xs[0] + t * xs[1] + h * xs[2];
            T *y = (T *)a->y + b * ys[0] + t * ys[1] + h * ys[2];
            for (int64_t j = 0; j < half; j++) {
                int64_t i0 = j * near, i1 = i0 + far;
                double x0 = (double)x[i0 * xs[3]], x1 = (double)x[i1 * xs[3]];
                y[i0 * ys[3]] = (T)(x0 * cosines[j] - x1 * sines[j]);
                y[i1 * ys[3]] = (T)(x1 * cosines[j] + x0 * sines[j]);
            }
            if (a->head_dim % 2) y[(a->head_dim - 1) * ys[3]] = x[(a->head_dim - 1) * xs[3]]; /* no partner: stays */
        }
}
