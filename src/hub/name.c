/* Parses and checks names. */
#include "hub/name.h"

#include "base/strings.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { LONGEST_PART = 96, LONGEST_COMPONENT = 255 };

/* ---- Repositories ---- */

/* Whether text may be part of a repository's name: letters, digits, '-', '_' and '.', as on the hub. */
static bool is_part(const char *part, size_t length)
{
    if (length == 0 || length > LONGEST_PART)
        return false;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)part[i]) && !strchr("-_.", part[i]))
            return false;
    return !strchr("-.", part[0]) && !strchr("-.", part[length - 1]) && !qn_memmem(part, length, "--", 2) &&
           !qn_memmem(part, length, "..", 2) && !(length >= 4 && memcmp(part + length - 4, ".git", 4) == 0);
}

static bool is_type(const char *text)
{
    const size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("_-", text[i]))
            return false;
    return length > 0 && length < QN_HUB_TYPE_SIZE && isalnum((unsigned char)text[0]);
}

/* ---- Revisions and files ---- */

static const char revision_rule[] = "a revision is a branch, a tag or a commit: up to 127 letters, digits, '-', '_', "
                                    "'+', '.' and '/', beginning with a letter or digit";

/* Returns NULL, or the rule that the revision violates. */
static const char *set_revision(qn_hub_name *name, const char *revision, size_t length)
{
    if (length == 0 || length >= sizeof name->revision || !isalnum((unsigned char)*revision))
        return revision_rule;
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)revision[i]) && !strchr("-_+./", revision[i]))
            return revision_rule;
    memcpy(name->revision, revision, length);
    name->revision[length] = '\0';
    return qn_hub_path_is_safe(name->revision) ? NULL : revision_rule;
}

static const char *set_file(qn_hub_name *name, const char *file)
{
    if (!qn_hub_path_is_safe(file))
        return "the file's name would leave its folder or has characters that no file should have";
    strcpy(name->file, file);
    return NULL;
}

/* Returns NULL, or the rule that the text violates. */
static const char *parse_name(const char *text, qn_hub_name *name)
{
    const size_t repo = strcspn(text, ":@"), end = strcspn(text, ":");
    const char *slash = memchr(text, '/', repo), *wanted = text[end] ? text + end + 1 : NULL;
    *name = (qn_hub_name){ .revision = "main" };
    if (!slash)
        return "expected OWNER/REPO, OWNER/REPO:FILE or OWNER/REPO:TYPE";
    if (!is_part(text, (size_t)(slash - text)) || !is_part(slash + 1, repo - (size_t)(slash - text) - 1))
        return "OWNER and REPO are 1 to 96 letters, digits, '-', '_' and '.' each, beginning and ending with neither "
               "'-' nor '.', without '--' and '..'";
    memcpy(name->repo, text, repo);
    const char *wrong = repo < end ? set_revision(name, text + repo + 1, end - repo - 1) : NULL;
    if (wrong || !wanted)
        return wrong;
    if (strpbrk(wanted, "./\\"))
        return set_file(name, wanted);
    if (!is_type(wanted))
        return "expected a file's name or a weight type such as Q1_0 after ':'";
    strcpy(name->type, wanted);
    return NULL;
}

/* ---- Addresses ---- */

enum { LONGEST_ADDRESS = QN_HUB_REPO_SIZE + QN_HUB_REVISION_SIZE + 3 * QN_HUB_PATH_SIZE };

/* Returns what follows the hub's host, or NULL if the text is no address of the hub. */
static const char *after_host(const char *text)
{
    static const char *const begins[] = { "https://", "http://", "www.", NULL };
    static const char *const hosts[] = { "huggingface.co/", "hf.co/", NULL };
    for (size_t i = 0; begins[i]; i++)
        if (strncasecmp(text, begins[i], strlen(begins[i])) == 0)
            text += strlen(begins[i]);
    for (size_t i = 0; hosts[i]; i++)
        if (strncasecmp(text, hosts[i], strlen(hosts[i])) == 0)
            return text + strlen(hosts[i]);
    return NULL;
}

/* Replaces %XX by bytes, in place. */
static void decode(char *text)
{
    char *to = text;
    for (const char *c = text; *c; c++) {
        unsigned byte;
        if (*c == '%' && isxdigit((unsigned char)c[1]) && isxdigit((unsigned char)c[2]) &&
            sscanf(c + 1, "%2x", &byte) == 1 && byte) {
            *to++ = (char)byte;
            c += 2;
        } else {
            *to++ = *c;
        }
    }
    *to = '\0';
}

/* The end of the revision that a path begins with: one component, or three as in refs/pr/1. */
static char *revision_end(char *path)
{
    const int slashes = strncmp(path, "refs/", 5) == 0 ? 3 : 1;
    char *end = path;
    for (int i = 0; i < slashes && *end; i++)
        end += (i > 0) + strcspn(end + (i > 0), "/");
    return end;
}

/* Parses the part of an address after OWNER/REPO/: blob/REVISION/FILE or tree/REVISION. */
static const char *parse_page(char *page, qn_hub_name *name)
{
    static const char *const kinds[] = { "blob/", "resolve/", "raw/", "tree/", NULL };
    size_t kind = 0;
    while (kinds[kind] && strncmp(page, kinds[kind], strlen(kinds[kind])) != 0)
        kind++;
    if (!kinds[kind])
        return "expected the address of a repository, or of a file in it: .../OWNER/REPO/blob/REVISION/FILE";
    char *revision = page + strlen(kinds[kind]), *file = revision_end(revision);
    if (*file)
        *file++ = '\0';
    decode(revision);
    decode(file);
    const char *wrong = set_revision(name, revision, strlen(revision));
    if (wrong || !*file)
        return wrong;
    return strcmp(kinds[kind], "tree/") == 0 ? "the address is a folder's: expected a file's" : set_file(name, file);
}

static const char *parse_address(const char *path, qn_hub_name *name)
{
    char text[LONGEST_ADDRESS];
    size_t length = strcspn(path, "?#");
    while (length && path[length - 1] == '/')
        length--;
    *name = (qn_hub_name){ 0 };
    if (length >= sizeof text)
        return "the address is too long";
    memcpy(text, path, length);
    text[length] = '\0';
    char *page = text + strcspn(text, "/:@");
    page += *page == '/' ? 1 + strcspn(page + 1, "/:@") : 0;
    if (*page != '/')
        return parse_name(text, name);
    *page = '\0';
    const char *wrong = parse_name(text, name);
    return wrong ? wrong : parse_page(page + 1, name);
}

/* ---- Names and addresses ---- */

/* Returns NULL, or the rule that the text violates. */
static const char *parse(const char *text, qn_hub_name *name)
{
    const char *path = after_host(text);
    return path ? parse_address(path, name) : parse_name(text, name);
}

qn_status qn_hub_name_parse(const char *text, qn_hub_name *name)
{
    const char *wrong = parse(text, name);
    return wrong ? qn_fail(QN_ERR_INVALID, "'%.200s': %s", text, wrong) : QN_OK;
}

bool qn_hub_name_is(const char *text)
{
    qn_hub_name name;
    return !parse(text, &name) && (strchr(text, ':') || !qn_hub_path_is_gguf(text) || after_host(text));
}

bool qn_hub_is_address(const char *text)
{
    return after_host(text) != NULL;
}

/* ---- Paths and hashes ---- */

bool qn_hub_path_is_safe(const char *path)
{
    if (strlen(path) >= QN_HUB_PATH_SIZE)
        return false;
    for (const char *c = path; *c; c++) {
        const bool c1 =
            (unsigned char)c[0] == 0xc2 && (unsigned char)c[1] >= 0x80 && (unsigned char)c[1] <= 0x9f; /* UTF-8
                                                                                                        */
        if ((unsigned char)*c < 0x20 || *c == 0x7f || *c == '\\' || c1)
            return false;
    }
    const char *component = path;
    for (int folders = 0; folders <= QN_HUB_MAX_DEPTH; folders++, component++) {
        const size_t length = strcspn(component, "/");
        if (length == 0 || length > LONGEST_COMPONENT || (length == 1 && component[0] == '.') ||
            (length == 2 && component[0] == '.' && component[1] == '.'))
            return false;
        component += length;
        if (!*component)
            return true;
    }
    return false;
}

bool qn_hub_is_hash(const char *text, size_t length)
{
    return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

bool qn_hub_is_etag(const char *text)
{
    return qn_hub_is_hash(text, 64) || qn_hub_is_hash(text, 40);
}

/* ---- Weight types in file names ---- */

const char *qn_hub_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool qn_hub_path_is_gguf(const char *path)
{
    const size_t length = strlen(path);
    return length >= 5 && strcasecmp(path + length - 5, ".gguf") == 0;
}

/* Unsloth's files with a different type in each layer. Such a file and one of the plain type are different models. */
static const char dynamic[] = "UD-";
enum { DYNAMIC_LENGTH = sizeof dynamic - 1 };

const char *qn_hub_type_format(const char *type)
{
    return type + (strncasecmp(type, dynamic, DYNAMIC_LENGTH) == 0 ? DYNAMIC_LENGTH : 0);
}

/* The length of the format at `at`: F16, BF16, Q4_K_M, IQ3_XXS, PTQ1_0, MXFP4; 0 if there is none. */
static size_t format_length(const char *at)
{
    static const char *const begins[] = { "bf16", "f16", "f32", "mxfp4", "nvfp4", NULL };
    static const char *const families[] = { "q", "iq", "tq", "pq", "ptq", NULL };
    size_t length = 0;
    for (size_t i = 0; begins[i] && !length; i++)
        if (strncasecmp(at, begins[i], strlen(begins[i])) == 0)
            length = strlen(begins[i]);
    for (size_t i = 0; families[i] && !length; i++) {
        const size_t letters = strlen(families[i]);
        if (strncasecmp(at, families[i], letters) == 0 && isdigit((unsigned char)at[letters]))
            length = letters + 1;
    }
    while (length && at[length] == '_') { /* "_K", "_0", "_M", "_XXS" */
        size_t piece = 0;
        while (isalnum((unsigned char)at[length + 1 + piece]))
            piece++;
        if (piece == 0 || piece > 3)
            break;
        length += 1 + piece;
    }
    return !isalnum((unsigned char)at[length]) ? length : 0;
}

static size_t type_length(const char *at)
{
    const size_t prefix = (size_t)(qn_hub_type_format(at) - at), length = format_length(at + prefix);
    return length && prefix + length < QN_HUB_TYPE_SIZE ? prefix + length : 0;
}

bool qn_hub_path_type(const char *path, char type[QN_HUB_TYPE_SIZE])
{
    type[0] = '\0';
    for (const char *at = qn_hub_path_base(path); *at;) {
        const bool begins = at == path || !isalnum((unsigned char)at[-1]);
        const size_t length = begins ? type_length(at) : 0;
        if (length) {
            for (size_t i = 0; i < length; i++)
                type[i] = (char)toupper((unsigned char)at[i]);
            type[length] = '\0';
        }
        at += length ? length : 1;
    }
    return type[0] != '\0';
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

bool qn_hub_path_has_words(const char *path, const char *words)
{
    const char *name = qn_hub_path_base(path);
    const size_t length = strlen(words);
    for (const char *at = name; (at = qn_strcasestr(at, words)); at++)
        if ((at == name || !is_word(at[-1])) && !is_word(at[length]))
            return true;
    return false;
}
