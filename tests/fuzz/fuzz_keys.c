/* Files of API keys: any bytes are read as one, twice, with a key from an argument before it. An accepted file's keys
 * can be found, and nothing else; a refused file leaves the keys unchanged.
 *
 * An input is: a header's value, a zero byte, a file, a zero byte, the file that replaces it. */
#include "fuzz.h"

#include "http/keys.h"

enum { N_TEXTS = 3 };

static size_t n_warnings;

static void warn(const char *text)
{
    require(*text, "a warning has a text");
    n_warnings++;
}

static bool is_visible(const char *text)
{
    for (; *text; text++)
        if (*text <= ' ' || *text > '~')
            return false;
    return true;
}

/* Whether a header's value finds a key; a found key has a name and a scope. */
static bool finds(qn_keys *keys, const char *authorization, const char *api_key)
{
    qn_key key;
    if (!qn_keys_find(keys, authorization, api_key, &key))
        return false;
    require(*key.name && strnlen(key.name, sizeof key.name) < sizeof key.name && is_visible(key.name),
            "a key has a name");
    require(strnlen(key.scope, sizeof key.scope) == 32, "a key has a scope");
    return true;
}

/* Whether a line of the file is this key, determined in another way than in keys.c. */
static bool has_line(const char *file, size_t size, const char *key)
{
    for (size_t at = 0, end; at < size; at = end + 1) {
        const char *line = memchr(file + at, '\n', size - at);
        end = line ? (size_t)(line - file) : size;
        const char *found = memmem(file + at, end - at, key, strlen(key));
        if (*key && found)
            return true;
    }
    return false;
}

static void rewrite(int fd, const char *data, size_t size)
{
    require(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size, "the file is written");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const values[] = { "admin: secret-of-an-argument" };
    const char *texts[N_TEXTS];
    size_t lengths[N_TEXTS];
    char path[64], header[600], bearer[620];
    const char *paths[] = { path };
    qn_keys *keys;
    const uint8_t *at = data;
    for (size_t i = 0; i < N_TEXTS; i++) {
        const size_t left = size - (size_t)(at - data);
        const uint8_t *zero = left && i + 1 < N_TEXTS ? memchr(at, 0, left) : NULL;
        texts[i] = (const char *)at;
        lengths[i] = zero ? (size_t)(zero - at) : left;
        at += lengths[i] + (zero != NULL);
    }
    snprintf(header, sizeof header, "%.*s", (int)lengths[0], lengths[0] ? texts[0] : "");
    snprintf(bearer, sizeof bearer, "Bearer %s", header);
    const int fd = memory_file(texts[1], lengths[1], path);
    if (qn_keys_create(values, 1, paths, 1, warn, &keys) == QN_OK) {
        const bool is_known = finds(keys, NULL, header);
        require(!is_known || has_line(texts[1], lengths[1], header) || !strcmp(header, "secret-of-an-argument"),
                "what is found is there");
        require(finds(keys, "Bearer secret-of-an-argument", NULL) &&
                    finds(keys, "bearer  secret-of-an-argument", header),
                "the argument is found");
        require(!finds(keys, NULL, "") && !finds(keys, "Bearer ", "") && !finds(keys, NULL, NULL), "nothing is no key");
        (void)finds(keys, bearer, NULL);
        (void)finds(keys, header, NULL);
        rewrite(fd, texts[2], lengths[2]);
        if (qn_keys_reload(keys) == QN_OK)
            require(!finds(keys, NULL, header) || has_line(texts[2], lengths[2], header) ||
                        !strcmp(header, "secret-of-an-argument"),
                    "what was removed is not found");
        else
            require(*qn_error_text() && finds(keys, NULL, header) == is_known,
                    "a file that is refused changes nothing");
        require(finds(keys, NULL, "secret-of-an-argument"), "the argument stays");
        qn_keys_free(keys);
    } else {
        require(*qn_error_text(), "a refusal has a text");
    }
    close(fd);
    return 0;
}
