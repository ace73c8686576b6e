/* Conversion of checkpoints: any bytes replace one of the files of a small checkpoint whose other files are sound;
 * the first byte selects it. After '6' come two files, for packed matrices: a config.json, after its length in four
 * bytes, and a model.safetensors. A successful conversion gives a file that the GGUF reader accepts.
 * tools/fuzz_corpus_convert.py makes the seeds. */
#include "gguf/gguf.h"
#include "quern/quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const FILES[] = {
    "model.safetensors",     "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json",
    "generation_config.json"
};
enum { N_FILES = sizeof FILES / sizeof *FILES, N_BASE = 4, MAX_BASE = 1 << 16, WEIGHTS = 0, CONFIG = 1 };

static char folder[64], out[128];
static uint8_t base[N_BASE][MAX_BASE];
static size_t base_size[N_BASE];

static const char *path_of(size_t i)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, FILES[i]);
    return path;
}

static void write_file(size_t i, const uint8_t *data, size_t size)
{
    FILE *file = fopen(path_of(i), "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file))
        abort();
}

static void remove_folder(void)
{
    for (size_t i = 0; i < N_FILES; i++)
        unlink(path_of(i));
    unlink(out);
    rmdir(folder);
}

static void make_base(void)
{
    struct stat info;
    const char *source = getenv("QN_SOURCE_DIR");                     /* if the target runs elsewhere */
    const char *root = stat("/dev/shm", &info) ? "/tmp" : "/dev/shm"; /* conversions end with fsync */
    snprintf(folder, sizeof folder, "%s/quern-fuzz-convert-XXXXXX", root);
    if (!mkdtemp(folder))
        abort();
    atexit(remove_folder);
    snprintf(out, sizeof out, "%s/out.gguf", folder);
    for (size_t i = 0; i < N_BASE; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/tests/fuzz/corpus/convert/base_%zu", source ? source : QN_SOURCE_DIR, i);
        FILE *file = fopen(path, "rb");
        if (!file || fgetc(file) != (int)('0' + i))
            abort();
        base_size[i] = fread(base[i], 1, MAX_BASE, file);
        fclose(file);
        write_file(i, base[i], base_size[i]);
    }
    if (qn_convert_checkpoint(folder, out, NULL,
                              &(qn_convert_params){ .size = sizeof(qn_convert_params), .n_threads = 1 }) != QN_OK)
        abort();
}

static void convert(const char *type)
{
    const qn_convert_params params = { .size = sizeof(qn_convert_params), .n_threads = 1, .force = true };
    qn_gguf *file;
    if (qn_convert_checkpoint(folder, out, type, &params) != QN_OK)
        return;
    if (qn_gguf_open(out, &file) != QN_OK)
        abort();
    qn_gguf_close(file);
}

static void restore(size_t which)
{
    if (which < N_BASE)
        write_file(which, base[which], base_size[which]);
    else
        unlink(path_of(which));
}

static void convert_packed(const uint8_t *data, size_t size, const char *type)
{
    uint32_t length;
    if (size < sizeof length)
        return;
    memcpy(&length, data, sizeof length);
    data += sizeof length;
    size -= sizeof length;
    length = length < size ? length : (uint32_t)size;
    write_file(CONFIG, data, length);
    write_file(WEIGHTS, data + length, size - length);
    convert(type);
    restore(CONFIG);
    restore(WEIGHTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const types[] = { NULL, "f16", "q2_0" };
    if (!folder[0])
        make_base();
    if (size == 0 || data[0] < '0' || data[0] > '0' + N_FILES)
        return 0;
    const size_t which = data[0] - '0';
    const char *type = types[size % 3];
    if (which == N_FILES) {
        convert_packed(data + 1, size - 1, type);
        return 0;
    }
    write_file(which, data + 1, size - 1);
    convert(type);
    restore(which);
    return 0;
}
