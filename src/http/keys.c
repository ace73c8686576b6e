/* API keys. A set is immutable: a reload reads a new set, which replaces it. */
#include "http/keys.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/random.h"
#include "base/strings.h"
#include "base/utf8.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

enum { LINE_BYTES = 512, KEY_WORDS = QN_KEY_MAX_BYTES / sizeof(uint64_t) };

/* A key padded with zeros. All keys have one length, so that each comparison takes the same time. */
typedef struct padded_key {
    uint64_t words[KEY_WORDS];
} padded_key;

typedef struct entry {
    padded_key key;
    qn_key known;
} entry;

typedef struct key_set {
    entry *entries; /* [n] */
    size_t n, capacity;
} key_set;

/* Members but `set` are constant after creation. */
struct qn_keys {
    pthread_rwlock_t lock; /* of the set; held for reading while a key is looked up */
    key_set set;
    char **values, **files; /* [n_values], [n_files] */
    size_t n_values, n_files;
    void (*warn)(const char *text);
    uint64_t seed; /* random, so that scopes differ between processes */
};

/* ---- Entries ---- */

static bool pad(const char *key, size_t length, padded_key *out)
{
    *out = (padded_key){ 0 };
    if (!length || length > QN_KEY_MAX_BYTES)
        return false;
    memcpy(out->words, key, length);
    return true;
}

static bool is_visible(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return true;
}

/* Adds a key, or "name: key", of [length] bytes. `where` is its place, for errors. */
static qn_status add_key(const qn_keys *keys, key_set *set, const char *text, size_t length, const char *where)
{
    const char *delimiter = qn_memmem(text, length, ": ", 2);
    const char *name = delimiter ? text : "", *key = delimiter ? delimiter + 2 : text;
    size_t n_name = delimiter ? (size_t)(delimiter - text) : 0, n_key = length - (size_t)(key - text);
    for (; n_key && *key == ' '; n_key--)
        key++;
    if (delimiter && (!n_name || n_name >= QN_KEY_NAME_BYTES || !is_visible(name, n_name)))
        return qn_fail(QN_ERR_INVALID,
                       "%s: the name of an API key has %zu bytes, expected 1 to %d visible ASCII characters", where,
                       n_name, QN_KEY_NAME_BYTES - 1);
    if (!n_key || n_key > QN_KEY_MAX_BYTES || !is_visible(key, n_key))
        return qn_fail(QN_ERR_INVALID, "%s: an API key has %zu bytes, expected 1 to %d visible ASCII characters", where,
                       n_key, QN_KEY_MAX_BYTES);
    if (set->n == QN_KEY_MAX_KEYS)
        return qn_fail(QN_ERR_INVALID, "%s: there are more than %d API keys", where, QN_KEY_MAX_KEYS);
    QN_TRY(qn_realloc_array(&set->entries, &set->capacity, set->n + 1, sizeof *set->entries, "API keys"));

    entry *e = &set->entries[set->n++];
    const XXH128_hash_t hash = XXH3_128bits_withSeed(key, n_key, keys->seed);
    *e = (entry){ 0 };
    (void)pad(key, n_key, &e->key);
    if (n_name)
        memcpy(e->known.name, name, n_name);
    else
        snprintf(e->known.name, sizeof e->known.name, "key%zu", set->n);
    snprintf(e->known.scope, sizeof e->known.scope, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return QN_OK;
}

static size_t trimmed(char **text)
{
    *text += strspn(*text, " \t\r\n");
    size_t n = strlen(*text);
    while (n && strchr(" \t\r\n", (*text)[n - 1]))
        n--;
    return n;
}

/* ---- Files ---- */

/* Reads a line of at most LINE_BYTES - 1 bytes, without its end; *n is its length, a zero follows it. False: end of
 * file. */
static bool read_line(FILE *file, char line[LINE_BYTES], size_t *n)
{
    int c = 0;
    for (*n = 0; *n + 1 < LINE_BYTES && (c = getc(file)) != EOF && c != '\n';)
        line[(*n)++] = (char)c;
    line[*n] = '\0';
    return *n || c == '\n';
}

static qn_status read_lines(const qn_keys *keys, key_set *set, FILE *file, const char *path)
{
    char line[LINE_BYTES], where[LINE_BYTES];
    const size_t n_before = set->n;
    size_t read;
    for (size_t number = 1; read_line(file, line, &read); number++) {
        char *text = line + (number == 1 ? qn_utf8_mark(line, read) : 0);
        const size_t n = trimmed(&text);
        snprintf(where, sizeof where, "%.400s, line %zu", path, number);
        if (read + 1 == sizeof line)
            return qn_fail(QN_ERR_INVALID, "%s: the line is longer than %d bytes", where, LINE_BYTES - 2);
        if (strlen(line) != read)
            return qn_fail(QN_ERR_INVALID, "%s: the line has a zero byte, expected ASCII", where);
        if (n && *text != '#')
            QN_TRY(add_key(keys, set, text, n, where));
    }
    if (ferror(file))
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (set->n == n_before)
        return qn_fail(QN_ERR_INVALID, "%s: the file has no API keys, expected one per line", path);
    return QN_OK;
}

static qn_status read_file(const qn_keys *keys, key_set *set, const char *path)
{
    qn_file_info info;
    char text[LINE_BYTES];
    FILE *file = qn_file_stream(path, "r");
    if (!file)
        return qn_fail(QN_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (keys->warn && qn_file_describe_fd(fileno(file), &info) && info.kind == QN_FILE_REGULAR && info.mode & 0004) {
        snprintf(text, sizeof text, "%.400s: all users can read these API keys (mode %03o, expected 600)", path,
                 info.mode);
        keys->warn(text);
    }
    const qn_status status = read_lines(keys, set, file, path);
    fclose(file);
    return status;
}

static void free_set(key_set *set)
{
    free(set->entries);
    *set = (key_set){ 0 };
}

static bool has_operator(const key_set *set)
{
    size_t i = 0;
    while (i < set->n && strcmp(set->entries[i].known.name, QN_KEY_OPERATORS) != 0)
        i++;
    return set->n == 1 || i < set->n;
}

static qn_status read_all(const qn_keys *keys, key_set *set)
{
    qn_status status = QN_OK;
    for (size_t i = 0; !status && i < keys->n_values; i++)
        status = add_key(keys, set, keys->values[i], strlen(keys->values[i]), "--api-key");
    for (size_t i = 0; !status && i < keys->n_files; i++)
        status = read_file(keys, set, keys->files[i]);
    if (status)
        free_set(set);
    else if (keys->warn && set->n && !has_operator(set))
        keys->warn("/metrics needs the API key named " QN_KEY_OPERATORS ", and there is none");
    return status;
}

/* ---- Public functions ---- */

static qn_status copy_texts(const char *const *texts, size_t n, char ***out, size_t *n_out)
{
    QN_TRY(qn_alloc(out, n, sizeof **out, "API keys"));
    *n_out = n;
    for (size_t i = 0; i < n; i++)
        if (!((*out)[i] = strdup(texts[i])))
            return qn_fail(QN_ERR_MEMORY, "not enough memory for API keys");
    return QN_OK;
}

static void free_texts(char **texts, size_t n)
{
    for (size_t i = 0; texts && i < n; i++)
        free(texts[i]);
    qn_free(texts);
}

void qn_keys_free(qn_keys *keys)
{
    if (!keys)
        return;
    free_set(&keys->set);
    free_texts(keys->values, keys->n_values);
    free_texts(keys->files, keys->n_files);
    pthread_rwlock_destroy(&keys->lock);
    qn_free(keys);
}

qn_status qn_keys_create(const char *const *values, size_t n_values, const char *const *files, size_t n_files,
                         void (*warn)(const char *text), qn_keys **out)
{
    qn_keys *keys;
    *out = NULL;
    QN_TRY(qn_alloc(&keys, 1, sizeof *keys, "API keys"));
    pthread_rwlock_init(&keys->lock, NULL);
    keys->warn = warn;
    qn_status status = copy_texts(values, n_values, &keys->values, &keys->n_values);
    if (!status)
        status = copy_texts(files, n_files, &keys->files, &keys->n_files);
    if (!status && !qn_random_bytes(&keys->seed, sizeof keys->seed))
        status = qn_fail(QN_ERR_IO, "the system has no random numbers: %s", strerror(errno));
    if (!status)
        status = read_all(keys, &keys->set);
    if (status) {
        qn_keys_free(keys);
        return status;
    }
    *out = keys;
    return QN_OK;
}

qn_status qn_keys_reload(qn_keys *keys)
{
    key_set set = { 0 };
    QN_TRY(read_all(keys, &set));
    pthread_rwlock_wrlock(&keys->lock);
    key_set old = keys->set;
    keys->set = set;
    pthread_rwlock_unlock(&keys->lock);
    free_set(&old);
    return QN_OK;
}

/* Returns all ones if the keys are equal, else 0. The asm barrier keeps the compiler from stopping at the first
 * difference. */
static uint64_t equal_mask(const padded_key *a, const padded_key *b)
{
    uint64_t difference = 0;
    for (size_t i = 0; i < KEY_WORDS; i++) {
        difference |= a->words[i] ^ b->words[i];
        __asm__ volatile("" : "+r"(difference));
    }
    return ((difference | (0 - difference)) >> 63) - 1;
}

/* The number of a key, from 1 on; 0: not found. Of equal keys it is the last. */
static uint64_t find(const key_set *set, const char *text, size_t length)
{
    padded_key key;
    uint64_t found = 0;
    if (!pad(text, length, &key))
        return 0;
    for (size_t i = 0; i < set->n; i++) {
        const uint64_t mask = equal_mask(&key, &set->entries[i].key);
        found = (found & ~mask) | ((i + 1) & mask);
    }
    return found;
}

bool qn_keys_find(qn_keys *keys, const char *authorization, const char *api_key, qn_key *key)
{
    const char *bearer = authorization && !strncasecmp(authorization, "Bearer ", 7) ? authorization + 7 : "";
    bearer += strspn(bearer, " ");
    pthread_rwlock_rdlock(&keys->lock);
    uint64_t found = find(&keys->set, bearer, strlen(bearer));
    const uint64_t other = api_key ? find(&keys->set, api_key, strlen(api_key)) : 0;
    found = found ? found : other;
    if (found) {
        *key = keys->set.entries[found - 1].known;
        key->is_operators = keys->set.n == 1 || !strcmp(key->name, QN_KEY_OPERATORS);
    }
    pthread_rwlock_unlock(&keys->lock);
    return found != 0;
}
