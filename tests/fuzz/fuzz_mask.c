/* fuzz_mask.c: libFuzzer target: any text as a mask, for a sequence that the first two bytes choose. What is understood
 * means the same when it is written and read again; for a length that fits, its slices lie inside and show no pair
 * twice, and their pairs are as many as are counted. */
#include <string.h>
#include "attn.h"
#include "fuzz.h"

static int64_t counted(const spl_slice *slices, int n, int64_t seq) {
    int64_t pairs = 0;
    for (int64_t q = 0; q < seq; q++)
        for (int64_t k = 0; k < seq; k++) {
            int times = 0;
            for (int i = 0; i < n; i++) {
                const spl_slice *s = &slices[i];
                int inside = q >= s->q_begin && q < s->q_end && k >= s->k_begin && k < s->k_end;
                int above = s->kind == SPL_SLICE_CAUSAL || s->kind == SPL_SLICE_BOTH;
                int below = s->kind == SPL_SLICE_INVERSE || s->kind == SPL_SLICE_BOTH;
                times += inside && !(above && k - s->k_end > q - s->q_end) &&
                         !(below && k - s->k_begin < q - s->q_begin);
            }
            fuzz_require(times <= 1, "no pair twice");
            pairs += times;
        }
    return pairs;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (n < 2) return 0;
    int64_t seq = bytes[0] % 48, huge = (int64_t)bytes[1] << 40, pairs;
    char *text = fuzz_text(bytes + 2, n - 2, 4096), again[8192];
    spl_mask *mask, *reread;
    spl_slice *slices;
    int count;
    spl_status s = spl_mask_parse(text, &mask);
    if (s.code != SPL_OK) {
        fuzz_require(s.code == SPL_EUSAGE && strlen(s.message) > 20, "a sentence, and exit code 2");
        free(text);
        return 0;
    }
    int length = spl_mask_format(mask, again, sizeof again);
    fuzz_require(length > 0 && length < (int)sizeof again && (int)strlen(again) == length, "its length");
    fuzz_require(spl_mask_parse(again, &reread).code == SPL_OK, "its own notation");
    char second[8192];
    spl_mask_format(reread, second, sizeof second);
    fuzz_require(!strcmp(again, second), "the same again");
    s = spl_mask_slices(mask, seq, seq, &slices, &count, &pairs);
    if (s.code == SPL_OK) {
        spli_mask plain = {.seq_q = seq, .seq_k = seq, .n = count, .slices = slices};
        fuzz_require(spli_mask_check(&plain).code == SPL_OK, "slices inside");
        fuzz_require(counted(slices, count, seq) == pairs, "as many pairs as counted");
        free(slices);
    } else {
        fuzz_require(s.code == SPL_EUSAGE && strlen(s.message) > 20, "a sentence on the length");
    }
    spli_mask big; /* any length: no overflow, no loop over it */
    if (spli_mask_resolve(mask, huge, huge, &big).code == SPL_OK) spli_mask_free(&big);
    spl_mask_release(mask);
    spl_mask_release(reread);
    free(text);
    return 0;
}
