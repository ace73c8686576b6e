/* API keys: what arguments and files may have, what is found, and reading files again while others look. */
#include "helper_assert.h"
#include "helper_files.h"

#include "http/keys.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[64];
static size_t n_warnings, n_notes;

static void count_warning(const char *text)
{
    n_warnings += strstr(text, path) && strstr(text, "644");
    n_notes += strstr(text, "/metrics") != NULL;
}

static void write_keys(const char *text)
{
    write_text(path, text);
    assert_int_equal(chmod(path, 0600), 0);
}

static int make_file(void)
{
    snprintf(path, sizeof path, "/tmp/quern_keys_XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int remove_file(void)
{
    return unlink(path);
}

static qn_keys *keys_of(const char *value, const char *file)
{
    qn_keys *keys;
    const char *const files[] = { path };
    if (file)
        write_keys(file);
    assert_ok(qn_keys_create(&value, value != NULL, files, file != NULL, count_warning, &keys));
    return keys;
}

/* The name of a key that is sent, or "-". */
static const char *name_of(qn_keys *keys, const char *sent)
{
    static qn_key key;
    char header[600];
    snprintf(header, sizeof header, "Bearer %s", sent);
    return qn_keys_find(keys, header, NULL, &key) ? key.name : "-";
}

#define assert_name(keys, sent, name) assert_string_equal(name_of(keys, sent), name)

TEST(keys_are_found)
{
    qn_keys *keys = keys_of("sk-1", "# a comment\n\nalice: secret-a\n  sk:colon \r\nbob:  secret-b\nlast: x");
    assert_name(keys, "sk-1", "key1");
    assert_name(keys, "secret-a", "alice");
    assert_name(keys, "sk:colon", "key3");
    assert_name(keys, "secret-b", "bob");
    assert_name(keys, "x", "last");
    static const char *const unknown[] = {
        "", "sk-", "sk-2", "sk-11", "SK-1", "alice", "alice: secret-a", "# a comment", "secret-a x"
    };
    for (size_t i = 0; i < COUNT(unknown); i++) {
        label("key '%s'", unknown[i]);
        assert_name(keys, unknown[i], "-");
    }
    qn_keys_free(keys);
}

TEST(headers_are_read)
{
    qn_key key;
    qn_keys *keys = keys_of("a: one", "b: two\n");
    assert_true(qn_keys_find(keys, "bearer   one", NULL, &key));
    assert_true(qn_keys_find(keys, NULL, "one", &key));
    assert_string_equal(key.name, "a");
    assert_true(qn_keys_find(keys, "Bearer two", "one", &key));
    assert_string_equal(key.name, "b");
    assert_true(qn_keys_find(keys, "Bearer none", "one", &key));
    assert_string_equal(key.name, "a");
    assert_false(qn_keys_find(keys, NULL, NULL, &key));
    assert_false(qn_keys_find(keys, "one", NULL, &key));
    assert_false(qn_keys_find(keys, "Basic one", NULL, &key));
    assert_false(qn_keys_find(keys, "Bearerone", NULL, &key));
    assert_false(qn_keys_find(keys, "Bearer", "", &key));
    assert_false(qn_keys_find(keys, NULL, "Bearer one", &key));
    qn_keys_free(keys);
}

TEST(one_is_the_operators)
{
    qn_key key;
    qn_keys *keys = keys_of("a: one", NULL);
    assert_true(qn_keys_find(keys, NULL, "one", &key));
    assert_true(key.is_operators); /* nobody else's */
    qn_keys_free(keys);
    keys = keys_of("a: one", QN_KEY_OPERATORS ": two\nmetrics2: three\n");
    assert_true(qn_keys_find(keys, NULL, "one", &key));
    assert_false(key.is_operators);
    assert_true(qn_keys_find(keys, NULL, "two", &key));
    assert_true(key.is_operators);
    assert_true(qn_keys_find(keys, NULL, "three", &key));
    assert_false(key.is_operators);
    qn_keys_free(keys);
}

/* Every character counts, up to the longest key. */
TEST(all_characters_count)
{
    char text[QN_KEY_MAX_BYTES + 2];
    memset(text, 'k', sizeof text);
    text[QN_KEY_MAX_BYTES] = '\0';
    qn_keys *keys = keys_of(text, NULL);
    for (size_t i = 0; i < QN_KEY_MAX_BYTES; i++) {
        text[i] = 'K';
        assert_name(keys, text, "-");
        text[i] = 'k';
    }
    assert_name(keys, text, "key1");
    assert_name(keys, text + 1, "-");
    text[QN_KEY_MAX_BYTES] = 'k';
    text[QN_KEY_MAX_BYTES + 1] = '\0';
    assert_name(keys, text, "-");
    qn_keys_free(keys);
}

TEST(bad_keys_are_refused)
{
    static const struct {
        const char *text, *error;
    } cases[] = { { "", "no API keys" },
                  { "# nothing\n\n", "no API keys" },
                  { "good\nbad key\n", "line 2" },
                  { ": x\n", "name" },
                  { "two words: x\n", "name" },
                  { "name: \x7f\n", "visible" },
                  { "caf\xc3\xa9\n", "visible" },
                  { "a\tb\n", "visible" },
                  { "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn: x\n", "64 bytes" } };
    const char *const files[] = { path }, *value = "";
    char line[700];
    qn_keys *keys;
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("file '%s'", cases[i].text);
        write_keys(cases[i].text);
        assert_int_equal(qn_keys_create(NULL, 0, files, 1, NULL, &keys), QN_ERR_INVALID);
        assert_null(keys);
        assert_text(cases[i].error);
    }
    for (size_t n = QN_KEY_MAX_BYTES + 1; n < sizeof line; n += 300) {
        memset(line, 'k', n);
        line[n] = '\0';
        write_keys(line);
        assert_fails(qn_keys_create(NULL, 0, files, 1, NULL, &keys), QN_ERR_INVALID, "line 1");
        assert_null(strstr(qn_error_text(), "kkk"));
    }
    assert_int_equal(qn_keys_create(&value, 1, NULL, 0, NULL, &keys), QN_ERR_INVALID);
    const char *const none[] = { "/nonexistent/keys" };
    assert_fails(qn_keys_create(NULL, 0, none, 1, NULL, &keys), QN_ERR_IO, "/nonexistent/keys");
}

/* A text in UTF-16 would be the key of its first character. */
TEST(files_with_zeros_are_refused)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
        { "s\0k\0\n\0", 6 }, { "good\nname: k\0ey\n", 16 }, { "good\0", 5 }, { "\0\n", 2 }, { "# a\0\n", 5 }
    };
    const char *const files[] = { path };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_keys *keys;
        write_file(path, cases[i].bytes, cases[i].n);
        assert_fails(qn_keys_create(NULL, 0, files, 1, NULL, &keys), QN_ERR_INVALID, "has a zero");
    }
}

TEST(exposed_files_are_named)
{
    n_warnings = 0;
    qn_keys *keys = keys_of(NULL, "a\n");
    assert_int_equal(n_warnings, 0);
    assert_int_equal(chmod(path, 0644), 0);
    assert_ok(qn_keys_reload(keys));
    assert_int_equal(n_warnings, 1);
    qn_keys_free(keys);
}

/* Of several keys, none of which may ask for /metrics. */
TEST(missing_operators_are_named)
{
    static const struct {
        const char *value, *file;
        size_t n_notes;
    } cases[] = { { NULL, "a\n", 0 },
                  { "a", NULL, 0 },
                  { NULL, "a\nb\n", 1 },
                  { "a", "b\n", 1 },
                  { "a", "x: b\nmetrics: c\n", 0 },
                  { NULL, "metrics: a\nb\n", 0 } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        n_notes = 0;
        qn_keys_free(keys_of(cases[i].value, cases[i].file));
        assert_int_equal(n_notes, cases[i].n_notes);
    }
}

TEST(reload_replaces)
{
    qn_key before, after, other;
    qn_keys *keys = keys_of("fixed", "alice: one\ntwo\n");
    assert_true(qn_keys_find(keys, "Bearer two", NULL, &before));
    write_keys("two\nalice: three\n");
    assert_ok(qn_keys_reload(keys));
    assert_name(keys, "one", "-");
    assert_name(keys, "fixed", "key1");
    assert_true(qn_keys_find(keys, "Bearer three", NULL, &other));
    assert_string_equal(other.name, "alice");
    assert_true(qn_keys_find(keys, "Bearer two", NULL, &after));
    assert_string_equal(after.name, "key2");
    assert_string_equal(after.scope, before.scope);
    assert_string_not_equal(after.scope, other.scope);
    write_keys("");
    assert_int_equal(qn_keys_reload(keys), QN_ERR_INVALID);
    assert_name(keys, "three", "alice");
    qn_keys_free(keys);
}

/* ---- Threads ---- */

static atomic_bool stop;

static void *look(void *user)
{
    size_t n_wrong = 0;
    while (!stop) {
        qn_key key;
        n_wrong += !qn_keys_find(user, "Bearer fixed", NULL, &key) || strcmp(key.name, "f") != 0;
        n_wrong += qn_keys_find(user, NULL, "none", &key);
    }
    return (void *)n_wrong;
}

TEST(threads_look_while_keys_are_read)
{
    pthread_t threads[3];
    qn_keys *keys = keys_of("f: fixed", "a\nb\n");
    stop = false;
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look, keys), 0);
    for (size_t i = 0; i < 200; i++)
        assert_ok(qn_keys_reload(keys));
    stop = true;
    for (size_t i = 0; i < 3; i++) {
        void *n_wrong;
        pthread_join(threads[i], &n_wrong);
        assert_null(n_wrong);
    }
    qn_keys_free(keys);
}

TEST_GROUP(make_file, remove_file)
