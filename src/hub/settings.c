/* Reads the environment. */
#include "hub/settings.h"

#include "base/environment.h"
#include "base/file.h"
#include "base/strings.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { DEFAULT_TIMEOUT = 10, MAX_TIMEOUT = 3600, TOKEN_SIZE = 4096 };

static bool is_true(const char *value)
{
    static const char *const trues[] = { "1", "ON", "YES", "TRUE" };
    for (size_t i = 0; value && i < sizeof trues / sizeof *trues; i++)
        if (strcasecmp(value, trues[i]) == 0)
            return true;
    return false;
}

/* An empty variable counts as unset. */
static const char *set(const char *value)
{
    return value && *value ? value : NULL;
}

/* ---- Folders ---- */

/* Appends `length` bytes to an allocated text; false without memory. */
static bool append(char **text, const char *bytes, size_t length)
{
    const size_t used = *text ? strlen(*text) : 0;
    char *longer = realloc(*text, used + length + 1);
    if (!longer)
        return false;
    memcpy(longer + used, bytes, length);
    longer[used + length] = '\0';
    *text = longer;
    return true;
}

/* Expands "~" or "~USER" at the beginning. *rest: the text after it. */
static bool append_home(char **text, const char *path, const char **rest)
{
    const size_t length = path[0] == '~' ? strcspn(path, "/") : 0;
    char name[64];
    const char *folder = length == 1 ? qn_file_home(NULL) : NULL;
    *rest = path;
    if (length > 1 && length < sizeof name) {
        memcpy(name, path + 1, length - 1);
        name[length - 1] = '\0';
        folder = qn_file_home(name);
    }
    if (!folder)
        return append(text, "", 0);
    *rest = path + length;
    return append(text, folder, strlen(folder));
}

/* Expands "$NAME" or "${NAME}"; unknown variables are left as they are. */
static bool append_variable(char **text, const char *at, const char **rest)
{
    char name[128];
    const bool braces = at[1] == '{';
    const char *first = at + 1 + braces, *end = first;
    while (*end && (braces ? *end != '}' : isalnum((unsigned char)*end) || *end == '_'))
        end++;
    const size_t length = (size_t)(end - first);
    const char *value = NULL;
    *rest = braces && *end ? end + 1 : end;
    if (length && length < sizeof name && (!braces || *end)) {
        memcpy(name, first, length);
        name[length] = '\0';
        value = qn_environment(name);
    }
    return value ? append(text, value, strlen(value)) : append(text, at, (size_t)(*rest - at));
}

/* Expands a path as Python's expanduser and expandvars, which huggingface_hub uses. NULL without memory. */
static char *expand(const char *path)
{
    char *text = NULL;
    bool ok = append_home(&text, path, &path);
    while (ok && *path) {
        const size_t plain = strcspn(path, "$");
        ok = append(&text, path, plain);
        path += plain;
        if (ok && *path)
            ok = append_variable(&text, path, &path);
    }
    if (ok)
        return text;
    free(text);
    return NULL;
}

static char *join(const char *folder, const char *name)
{
    char *path;
    return folder && asprintf(&path, "%s/%s", folder, name) >= 0 ? path : NULL;
}

/* Returns HF_HOME, or its default in the user's cache; free() it. NULL without memory or a home folder. */
static char *hub_home(void)
{
    const char *given = set(qn_environment("HF_HOME")), *caches = set(qn_environment("XDG_CACHE_HOME"));
    char *path = given    ? strdup(given)
                 : caches ? join(caches, "huggingface")
                          : join(qn_file_home(NULL), ".cache/huggingface");
    char *expanded = path ? expand(path) : NULL;
    free(path);
    return expanded;
}

/* ---- The token ---- */

/* Removes white space at both ends, and all line ends. */
static void clean(char *token)
{
    char *out = token;
    const char *in = token + strspn(token, " \t\r\n");
    for (; *in; in++)
        if (*in != '\r' && *in != '\n')
            *out++ = *in;
    while (out > token && isspace((unsigned char)out[-1]))
        out--;
    *out = '\0';
}

/* Opens the token's file. If HF_TOKEN_PATH names a pipe, waits for its writer. In the default place only a regular
 * file is read, so that nobody can make quern wait. */
static FILE *open_token(const char *path, bool given)
{
    qn_file_info info;
    if (given)
        return qn_file_stream(path, "r");
    const int fd = qn_file_open_read(path);
    if (fd >= 0 && (!qn_file_describe_fd(fd, &info) || info.kind != QN_FILE_REGULAR)) {
        close(fd);
        errno = EINVAL;
        return NULL;
    }
    return fd >= 0 ? fdopen(fd, "r") : NULL;
}

static qn_status read_token_file(const char *folder, char token[TOKEN_SIZE])
{
    const char *given = set(qn_environment("HF_TOKEN_PATH"));
    char *path = given ? expand(given) : join(folder, "token");
    FILE *file = path ? open_token(path, given != NULL) : NULL;
    const size_t length = file ? fread(token, 1, TOKEN_SIZE - 1, file) : 0;
    const bool missing = path && !file && (errno == ENOENT || errno == ENOTDIR);
    qn_status status = QN_OK;
    token[length] = '\0';
    if (!path)
        status = qn_fail(QN_ERR_MEMORY, "no memory for the path of the hub's token");
    else if ((!file && !missing) || (file && ferror(file)))
        status = qn_fail(QN_ERR_IO, "%s: cannot read the hub's token: %s", path, strerror(errno));
    if (file)
        fclose(file);
    free(path);
    return status;
}

static qn_status read_token(const char *folder, qn_hub_settings *settings)
{
    char token[TOKEN_SIZE] = "";
    const char *given = set(qn_environment("HF_TOKEN"));
    if (!given)
        given = set(qn_environment("HUGGING_FACE_HUB_TOKEN"));
    if (is_true(qn_environment("HF_HUB_DISABLE_IMPLICIT_TOKEN")))
        return QN_OK;
    if (given && strlen(given) >= sizeof token)
        return qn_fail(QN_ERR_INVALID, "HF_TOKEN: %zu characters are too many for a token", strlen(given));
    if (given)
        strcpy(token, given);
    clean(token);
    if (!*token) { /* empty or white space */
        given = NULL;
        QN_TRY(read_token_file(folder, token));
        clean(token);
    }
    for (const char *c = token; *c; c++)
        if (*c <= 0x20 || *c >= 0x7f) /* the token becomes part of a header line */
            return qn_fail(QN_ERR_INVALID, "%s: the hub's token contains an invalid character",
                           given ? "HF_TOKEN" : "token file");
    if (*token && !(settings->token = strdup(token)))
        return qn_fail(QN_ERR_MEMORY, "no memory for the hub's token");
    return QN_OK;
}

/* ---- Everything ---- */

static qn_status read_endpoint(qn_hub_settings *settings)
{
    const char *given = set(qn_environment("HF_ENDPOINT"));
    settings->endpoint = strdup(given ? given : "https://huggingface.co");
    if (!settings->endpoint)
        return qn_fail(QN_ERR_MEMORY, "no memory for the hub's address");
    for (size_t n = strlen(settings->endpoint); n > 0 && settings->endpoint[n - 1] == '/'; n--)
        settings->endpoint[n - 1] = '\0';
    bool plain = true;
    for (const char *c = settings->endpoint; *c; c++)
        plain = plain && *c > 0x20 && *c < 0x7f && !strchr("@?#\\", *c);
    if (!plain || (strncmp(settings->endpoint, "https://", 8) != 0 && strncmp(settings->endpoint, "http://", 7) != 0))
        return qn_fail(QN_ERR_INVALID, "HF_ENDPOINT: '%s' is not an address, expected https://HOST[:PORT]",
                       settings->endpoint);
    return QN_OK;
}

static qn_status read_timeout(qn_hub_settings *settings)
{
    const char *given = set(qn_environment("HF_HUB_DOWNLOAD_TIMEOUT"));
    char *end = NULL;
    settings->timeout = given ? strtol(given, &end, 10) : DEFAULT_TIMEOUT;
    if (given && (*end || settings->timeout < 1 || settings->timeout > MAX_TIMEOUT))
        return qn_fail(QN_ERR_INVALID, "HF_HUB_DOWNLOAD_TIMEOUT: '%s' is not a number of seconds from 1 to %d", given,
                       MAX_TIMEOUT);
    return QN_OK;
}

qn_status qn_hub_settings_read(qn_hub_settings *settings)
{
    const char *cache = set(qn_environment("HF_HUB_CACHE"));
    *settings = (qn_hub_settings){ 0 };
    if (!cache)
        cache = set(qn_environment("HUGGINGFACE_HUB_CACHE"));
    settings->offline = is_true(set(qn_environment("HF_HUB_OFFLINE")) ? qn_environment("HF_HUB_OFFLINE")
                                                                      : qn_environment("TRANSFORMERS_OFFLINE"));
    QN_TRY(read_endpoint(settings));
    QN_TRY(read_timeout(settings));
    char *folder = hub_home();
    settings->cache = cache ? expand(cache) : join(folder, "hub");
    qn_status status = settings->cache ? read_token(folder, settings)
                                       : qn_fail(QN_ERR_IO, "the hub's cache: no folder for it; set HF_HOME or HOME");
    free(folder);
    return status;
}

void qn_hub_settings_free(qn_hub_settings *settings)
{
    if (settings->token)
        qn_wipe(settings->token, strlen(settings->token));
    free(settings->endpoint);
    free(settings->cache);
    free(settings->token);
    *settings = (qn_hub_settings){ 0 };
}
