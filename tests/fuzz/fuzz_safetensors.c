/* Headers of safetensors files: the bytes are the JSON text, after two bytes that give the size of the data. An
 * accepted header fills the data without gaps, and its last byte can be read. tools/fuzz_corpus_convert.py makes the
 * seeds. */
#include "gguf/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const qn_safetensors *file, uint64_t data_bytes)
{
    uint64_t end = 0;
    for (size_t i = 0; i < qn_safetensors_count(file); i++) {
        const qn_safetensor *t = qn_safetensors_at(file, i);
        uint64_t values = 1;
        uint8_t byte;
        for (uint32_t d = 0; d < QN_SAFETENSORS_MAX_DIMS; d++)
            values *= t->dims[d];
        if (t->begin != end || t->n_dims > QN_SAFETENSORS_MAX_DIMS || (values && t->bytes % values) ||
            (!values && t->bytes))
            abort();
        if (t->bytes && qn_safetensors_read(file, t, t->bytes - 1, &byte, 1) != 0)
            abort();
        end += t->bytes;
    }
    if (end != data_bytes)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    qn_safetensors *file;
    uint8_t prefix[8] = { 0 };
    if (size < 2)
        return 0;
    const uint64_t data_bytes = data[0] | (uint64_t)data[1] << 8, header = size - 2;
    for (size_t i = 0; i < sizeof prefix; i++)
        prefix[i] = (uint8_t)(header >> 8 * i);
    const int fd = memfd_create("safetensors", MFD_CLOEXEC);
    if (fd < 0 || write(fd, prefix, sizeof prefix) != (ssize_t)sizeof prefix ||
        write(fd, data + 2, header) != (ssize_t)header || ftruncate(fd, (off_t)(sizeof prefix + header + data_bytes)))
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (qn_safetensors_open(path, &file) == QN_OK) {
        check(file, data_bytes);
        qn_safetensors_close(file);
    }
    close(fd);
    return 0;
}
