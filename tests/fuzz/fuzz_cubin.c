/* Files of the cache of compiled kernels: any bytes are read as one, after the input has selected the parts to repair
 * (magic, sizes, key, checksum), so that each check is reached. A written file reads back, and does not with one byte
 * changed, added or removed.
 *
 * An input is: a byte of the repaired parts, one that selects the change, four of its place, a compiler's name up to
 * a zero byte, the file. */
#include "fuzz.h"

#include "cuda/runtime/cubin_key.h"

#include <fcntl.h>
#include <xxhash.h>

enum { RIGHT_MAGIC = 1, RIGHT_HEADER_BYTES = 2, RIGHT_PAYLOAD_BYTES = 4, RIGHT_KEY = 8, RIGHT_CHECKSUM = 16 };
enum { HEADER_BYTES = 128, PAYLOAD_BYTES_AT = 16, CHECKSUM_AT = 24, KEY_AT = 32 }; /* as code_file.c lays them out */

static char *folder, *path;
static const qn_code_key key = { "0123456789abcde" };

static void remove_all(void)
{
    unlink(path);
    rmdir(folder);
    free(path);
    free(folder);
}

static void set_up(void)
{
    char name[QN_CODE_NAME_MAX];
    folder = memory_folder("cubin");
    qn_code_file_name(&qn_cubin_files, &key, name);
    require(asprintf(&path, "%s/%s", folder, name) > 0 && !atexit(remove_all), "memory");
}

static void write_file(const uint8_t *data, size_t size)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, data, size) == (ssize_t)size, "the file is written");
    close(fd);
}

/* Whether the file is accepted; if so, checks its payload and compiler if they are given. */
static bool read_back(const uint8_t *payload, size_t size, const char *expected)
{
    void *data;
    size_t bytes;
    char compiler[QN_COMPILER_MAX];
    if (qn_code_file_read(&qn_cubin_files, folder, &key, &data, &bytes, compiler) != QN_OK) {
        require(!data && *qn_error_text(), "a refusal has a text and no data");
        return false;
    }
    require(data, "the file is there");
    require(strnlen(compiler, sizeof compiler) < sizeof compiler, "the compiler's name ends");
    require(!payload || (bytes == size && (!size || !memcmp(data, payload, size))), "what was written comes back");
    require(!expected || !strncmp(compiler, expected, QN_COMPILER_MAX - 1), "so does the compiler's name");
    free(data);
    return true;
}

/* Reads any bytes, some of which are repaired. */
static void read_any(uint8_t right, const uint8_t *data, size_t size)
{
    const uint64_t header_bytes = HEADER_BYTES, payload_bytes = size > HEADER_BYTES ? size - HEADER_BYTES : 0;
    uint8_t *file = calloc(1, size + HEADER_BYTES);
    require(file, "memory");
    if (size)
        memcpy(file, data, size);
    if (right & RIGHT_MAGIC)
        memcpy(file, "QNCUBIN1", 8);
    if (right & RIGHT_HEADER_BYTES)
        memcpy(file + 8, &header_bytes, sizeof header_bytes);
    if (right & RIGHT_PAYLOAD_BYTES)
        memcpy(file + PAYLOAD_BYTES_AT, &payload_bytes, sizeof payload_bytes);
    if (right & RIGHT_KEY)
        memcpy(file + KEY_AT, &key, sizeof key);
    if (right & RIGHT_CHECKSUM) {
        memset(file + CHECKSUM_AT, 0, sizeof(uint64_t));
        const uint64_t sum = XXH3_64bits_withSeed(file + HEADER_BYTES, payload_bytes, XXH3_64bits(file, HEADER_BYTES));
        memcpy(file + CHECKSUM_AT, &sum, sizeof sum);
    }
    write_file(file, size);
    const bool is_right = right % 32 == 31 && size >= HEADER_BYTES;
    require(!read_back(is_right ? file + HEADER_BYTES : NULL, payload_bytes, NULL) || right & RIGHT_CHECKSUM ||
                size >= HEADER_BYTES,
            "a file has a header");
    if (is_right)
        require(read_back(file + HEADER_BYTES, payload_bytes, NULL), "a file that is right is accepted");
    free(file);
}

/* Writes, reads, changes, and reads again. */
static void write_and_change(uint8_t how, size_t place, const char *compiler, const uint8_t *payload, size_t size)
{
    static uint8_t file[HEADER_BYTES + 4096 + 1];
    if (size > 4096)
        return;
    require(qn_code_file_write(&qn_cubin_files, folder, &key, compiler, payload, size) == QN_OK, "it is written");
    require(read_back(payload, size, compiler), "it is read");
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const size_t n = HEADER_BYTES + size;
    require(fd >= 0 && read(fd, file, sizeof file) == (ssize_t)n, "the header has this size");
    close(fd);
    file[n] = 0;
    if (how & 3)
        file[place % n] ^= how & 0xfc ? how & 0xfc : 1;
    write_file(file, how & 3 ? n : how & 4 ? n + 1 : place % n);
    require(!read_back(NULL, 0, NULL), "what is changed is refused");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    char compiler[200];
    if (!folder)
        set_up();
    const uint8_t right = take_byte(&in), how = take_byte(&in);
    const size_t place = take_number(&in, 4), most = in.left < sizeof compiler - 1 ? in.left : sizeof compiler - 1;
    const uint8_t *name;
    const size_t n = take_bytes(&in, most ? strnlen((const char *)in.at, most) : 0, &name);
    if (n)
        memcpy(compiler, name, n);
    compiler[n] = '\0';
    (void)take_byte(&in);
    if (right & 128)
        write_and_change(how, place, compiler, in.at, in.left);
    else
        read_any(right, in.at, in.left);
    return 0;
}
