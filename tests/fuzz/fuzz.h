/* fuzz.h: what the libFuzzer targets share: a property that does not hold ends the process, which is a finding. */
#ifndef SPL_FUZZ_H
#define SPL_FUZZ_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

#define fuzz_require(holds, what)                                                                   \
    do {                                                                                            \
        if (!(holds)) {                                                                             \
            fprintf(stderr, "%s:%d: does not hold: %s (%s)\n", __FILE__, __LINE__, what, #holds);   \
            abort();                                                                                \
        }                                                                                           \
    } while (0)

/* The input as text: ends at its first zero byte or after `limit` bytes. Free it. */
static inline char *fuzz_text(const uint8_t *bytes, size_t n, size_t limit) {
    char *text = malloc((n < limit ? n : limit) + 1);
    size_t k = 0;
    if (!text) abort();
    for (; k < n && k < limit && bytes[k]; k++) text[k] = (char)bytes[k];
    text[k] = 0;
    return text;
}

#endif
