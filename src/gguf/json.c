/* Reads JSON texts with limits on depth, size and memory. */
#include "gguf/json.h"

#include "base/file.h"
#include "gguf/json_decode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static qn_status fail(const char *what, const json_error_t *error)
{
    if (json_error_code(error) == json_error_stack_overflow)
        return qn_fail(QN_ERR_FORMAT, "%s: JSON nested more than %d deep", what, QN_JSON_MAX_DEPTH);
    if (json_error_code(error) == json_error_out_of_memory)
        return qn_fail(QN_ERR_FORMAT, "%s: line %d: its values take more memory than a text of its size may have", what,
                       error->line);
    return qn_fail(QN_ERR_FORMAT, "%s: line %d, column %d: %s", what, error->line, error->column, error->text);
}

qn_status qn_json_parse(const char *what, const char *text, size_t length, json_t **out)
{
    json_error_t error;
    *out = qn_json_load(text, length, JSON_REJECT_DUPLICATES, QN_JSON_MAX_DEPTH, &error);
    if (!*out)
        return fail(what, &error);
    if (json_is_object(*out))
        return QN_OK;
    json_decref(*out);
    *out = NULL;
    return qn_fail(QN_ERR_FORMAT, "%s: the JSON value is not an object", what);
}

static qn_status read_all(const char *path, int fd, uint64_t limit, char **text, size_t *length)
{
    qn_file_info info;
    if (!qn_file_describe_fd(fd, &info))
        return qn_fail(QN_ERR_IO, "%s: %s", path, strerror(errno));
    if (info.kind != QN_FILE_REGULAR)
        return qn_fail(QN_ERR_IO, "%s: is not a regular file", path);
    if (info.size > limit)
        return qn_fail(QN_ERR_FORMAT, "%s: has %lld bytes, at most %llu are allowed", path, (long long)info.size,
                       (unsigned long long)limit);
    const size_t size = (size_t)info.size;
    char *buffer = malloc(size + 1);
    if (!buffer)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for its %zu bytes", path, size);
    size_t n = 0;
    while (n < size) {
        const ssize_t now = read(fd, buffer + n, size - n);
        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0) {
            free(buffer);
            return now < 0 ? qn_fail(QN_ERR_IO, "%s: %s", path, strerror(errno))
                           : qn_fail(QN_ERR_IO, "%s: became shorter", path);
        }
        n += (size_t)now;
    }
    buffer[n] = '\0';
    *text = buffer;
    *length = n;
    return QN_OK;
}

qn_status qn_text_read(const char *path, uint64_t limit, bool required, char **text, size_t *length)
{
    *text = NULL;
    *length = 0;
    const int fd = qn_file_open_read(path); /* a FIFO must not block before it is refused */
    if (fd < 0)
        return errno == ENOENT && !required ? QN_OK : qn_fail(QN_ERR_IO, "%s: %s", path, strerror(errno));
    const qn_status status = read_all(path, fd, limit, text, length);
    close(fd);
    return status;
}

qn_status qn_json_read(const char *path, uint64_t limit, bool required, json_t **out)
{
    char *text;
    size_t length;
    *out = NULL;
    QN_TRY(qn_text_read(path, limit, required, &text, &length));
    if (!text)
        return QN_OK;
    const qn_status status = qn_json_parse(path, text, length, out);
    free(text);
    return status;
}
