/* fuzz_safetensors.c: libFuzzer target: any bytes as one safetensors file. A file is refused with a sentence, or all
 * that it hands out lies within its bytes and is found again by name. */
#include <stdlib.h>
#include <string.h>
#include "fuzz.h"
#include "spl.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    spl_safetensors *file = NULL;
    spl_status s = spl_safetensors_parse(bytes, n, "input.safetensors", &file);
    if (s.code != SPL_OK) {
        fuzz_require(!file && strstr(s.message, "input.safetensors"), "a sentence that names the file");
        return 0;
    }
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    const size_t data_bytes = n - 8 - (size_t)header;
    size_t last = 0;
    unsigned sum = 0;
    for (int i = 0; i < spl_safetensors_count(file); i++) {
        const spl_safetensors_entry *e = spl_safetensors_at(file, i);
        fuzz_require(e->at <= data_bytes && e->bytes <= data_bytes - e->at, "data within the file");
        fuzz_require(e->at >= last || !e->bytes, "entries by offset, none sharing bytes");
        int64_t count = 1;
        for (int d = 0; d < e->ndim; d++) {
            fuzz_require(e->shape[d] >= 0, "sizes of zero or more");
            if (e->shape[d] == 0) count = 0;
        }
        for (int d = 0; d < e->ndim && count; d++) count *= e->shape[d];
        fuzz_require((size_t)count * spl_dtype_size(e->dtype) == e->bytes, "bytes that the shape asks for");
        fuzz_require(spl_safetensors_find(file, e->name) == e, "the entry found by its name");
        if (e->bytes) {
            uint8_t ends[2];
            fuzz_require(spl_safetensors_read(file, e, 0, 1, ends).code == SPL_OK, "the first byte");
            fuzz_require(spl_safetensors_read(file, e, e->bytes - 1, 1, ends + 1).code == SPL_OK, "the last byte");
            fuzz_require(spl_safetensors_read(file, e, e->bytes, 1, ends).code == SPL_EARG, "none behind it");
            sum += ends[0] + ends[1];
            last = e->at + e->bytes;
        }
    }
    fuzz_require(!spl_safetensors_find(file, "no such tensor") || sum + 1, "a search that ends");
    fuzz_require(!spl_safetensors_at(file, -1), "no entry before the first");
    fuzz_require(!spl_safetensors_at(file, spl_safetensors_count(file)), "no entry after the last");
    spl_safetensors_close(file);
    return 0;
}
