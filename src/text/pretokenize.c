/* The patterns of the pre-tokenisers, matched with PCRE2.
 *
 * A pre-tokeniser has one or more patterns. Each is applied to the pieces of the previous pattern and splits them
 * into its matches and the text between matches. A piece is matched separately, without context. The patterns are
 * those of the models' tokenizer.json files; those of "default", "smaug-bpe" and "falcon3", and which names share a
 * pattern, are from llama.cpp (src/llama-vocab.cpp). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenize.h"

#include "base/append.h"
#include "base/memory.h"

#include <pcre2.h>
#include <stdint.h>

/* White space. PCRE2's \s is not used: it includes U+180E, which is not a space since Unicode 6.3. */
#define SPACE "\\t-\\r \\x{85}\\p{Z}"
#define AT_SPACE "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" AT_SPACE
/* The pattern of GPT-4. `letter`: the class of letters; `digits`: the pattern of a group of digits. */
#define GPT4(letter, digits)                                                                                           \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[" letter "]+|" digits "| ?[^" SPACE letter "\\p{N}]+[\\r\\n]*|[" SPACE        \
                "]*[\\r\\n]+|" AT_SPACE
/* The pattern of GPT-4o: words end where a capital letter follows a small one. `end`: what may follow a word. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT4O(end, digits)                                                                                             \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" end "|" digits      \
    "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n/]*|[" SPACE "]*[\\r\\n]+|" AT_SPACE
/* The third pattern of DeepSeek-V3. */
#define DEEPSEEK_V3                                                                                                    \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" AT_SPACE

enum { MAX_PATTERNS = 4, MAX_ALIASES = 3 };

typedef struct regex_spec {
    const char *name, *alias[MAX_ALIASES];
    const char *pattern[MAX_PATTERNS];
    bool normalizes, ignore_merges, add_bos;
} regex_spec;

static const regex_spec regex_specs[] = {
    { .name = "qwen2", .alias = { "deepseek-r1-qwen" }, .pattern = { GPT4("\\p{L}", "\\p{N}") }, .normalizes = true },
    { .name = "qwen35", .pattern = { GPT4("\\p{L}\\p{M}", "\\p{N}") }, .normalizes = true },
    { .name = "smollm", .pattern = { "\\p{N}", GPT2 } },
    { .name = "llama-bpe",
      .alias = { "llama3", "llama-v3", "falcon3" },
      .pattern = { GPT4("\\p{L}", "\\p{N}{1,3}") },
      .ignore_merges = true,
      .add_bos = true },
    { .name = "smaug-bpe", .pattern = { GPT4("\\p{L}", "\\p{N}{1,3}") } },
    { .name = "tekken", .pattern = { GPT4O("", "\\p{N}") }, .ignore_merges = true, .add_bos = true },
    { .name = "gpt-4o", .alias = { "llama4" }, .pattern = { GPT4O(CONTRACTION "?", "\\p{N}{1,3}") } },
    { .name = "deepseek-v3",
      .pattern = { "\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK_V3 } },
    { .name = "gpt-2", .pattern = { GPT2 } },
    { .name = "default", .pattern = { "[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]" } },
};

enum { N_SPECS = sizeof regex_specs / sizeof *regex_specs };

struct qn_pretokenizer {
    const regex_spec *regex_spec;
    size_t n_patterns;
    pcre2_code *pattern[MAX_PATTERNS];
};

struct qn_matcher {
    pcre2_match_data *found;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static bool has_name(const regex_spec *r, qn_string name)
{
    bool has = qn_string_equals(name, r->name);
    for (size_t i = 0; i < MAX_ALIASES && r->alias[i]; i++)
        has = has || qn_string_equals(name, r->alias[i]);
    return has;
}

static qn_status compile(const regex_spec *r, size_t pattern, pcre2_code **out)
{
    int error;
    size_t offset;
    *out = pcre2_compile((PCRE2_SPTR)r->pattern[pattern], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &offset,
                         NULL);
    if (!*out) {
        char text[128] = "";
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return qn_fail(error == PCRE2_ERROR_HEAP_FAILED ? QN_ERR_MEMORY : QN_ERR_UNSUPPORTED,
                       "pre-tokeniser '%s': PCRE2 cannot compile pattern %zu, at offset %zu: %s", r->name, pattern,
                       offset, text);
    }
    /* Without JIT (unsupported CPU, no executable memory) the interpreter gives the same matches. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return QN_OK;
}

static qn_status refuse(qn_string name)
{
    char list[256];
    qn_text_buffer names = QN_APPEND_TO(list);
    for (size_t i = 0; i < N_SPECS; i++) {
        qn_append(&names, "%s%s", i ? ", " : "", regex_specs[i].name);
        for (size_t a = 0; a < MAX_ALIASES && regex_specs[i].alias[a]; a++)
            qn_append(&names, ", %s", regex_specs[i].alias[a]);
    }
    return qn_fail(QN_ERR_UNSUPPORTED, "pre-tokeniser '%.*s' is not supported, expected one of %s",
                   (int)(name.length < 80 ? name.length : 80), name.data, list);
}

qn_status qn_pretokenizer_create(qn_string name, qn_pretokenizer **out)
{
    *out = NULL;
    const regex_spec *r = NULL;
    for (size_t i = 0; i < N_SPECS && !r; i++)
        if (has_name(&regex_specs[i], name))
            r = &regex_specs[i];
    if (!r)
        return refuse(name);
    qn_pretokenizer *pre;
    QN_TRY(qn_alloc(&pre, 1, sizeof *pre, "pre-tokeniser"));
    pre->regex_spec = r;
    while (pre->n_patterns < MAX_PATTERNS && r->pattern[pre->n_patterns]) {
        const qn_status status = compile(r, pre->n_patterns, &pre->pattern[pre->n_patterns]);
        if (status != QN_OK) {
            qn_pretokenizer_free(pre);
            return status;
        }
        pre->n_patterns++;
    }
    *out = pre;
    return QN_OK;
}

void qn_pretokenizer_free(qn_pretokenizer *pre)
{
    if (!pre)
        return;
    for (size_t i = 0; i < pre->n_patterns; i++)
        pcre2_code_free(pre->pattern[i]);
    qn_free(pre);
}

const char *qn_pretokenizer_name(const qn_pretokenizer *pre)
{
    return pre->regex_spec->name;
}

bool qn_pretokenizer_normalizes(const qn_pretokenizer *pre)
{
    return pre->regex_spec->normalizes;
}

bool qn_pretokenizer_ignores_merges(const qn_pretokenizer *pre)
{
    return pre->regex_spec->ignore_merges;
}

bool qn_pretokenizer_adds_bos(const qn_pretokenizer *pre)
{
    return pre->regex_spec->add_bos;
}

qn_status qn_matcher_create(qn_matcher **out)
{
    enum { JIT_STACK_INITIAL = 32 << 10, JIT_STACK_MAX = 1 << 20 };
    *out = NULL;
    qn_matcher *matcher;
    QN_TRY(qn_alloc(&matcher, 1, sizeof *matcher, "matcher"));
    matcher->found = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    if (!matcher->found || !matcher->context) {
        qn_matcher_free(matcher);
        return qn_fail(QN_ERR_MEMORY, "matcher: no memory");
    }
    /* On failure PCRE2 uses 32 KiB of the thread's stack, and match() falls back to the interpreter if they are
     * exceeded. */
    matcher->stack = pcre2_jit_stack_create(JIT_STACK_INITIAL, JIT_STACK_MAX, NULL);
    if (matcher->stack)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    /* The patterns take linear time, but backtracking over a run of a million spaces counts as a million matches. */
    pcre2_set_match_limit(matcher->context, UINT32_MAX);
    pcre2_set_depth_limit(matcher->context, UINT32_MAX);
    pcre2_set_heap_limit(matcher->context, UINT32_MAX);
    *out = matcher;
    return QN_OK;
}

void qn_matcher_free(qn_matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->found);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    qn_free(matcher);
}

/* Finds the next match of a pattern in text[from..length). *found is false if there is none. */
static qn_status match(const qn_pretokenizer *pre, size_t pattern, qn_matcher *matcher, const char *text, size_t length,
                       size_t from, bool *found, size_t *begin, size_t *end)
{
    const uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    int rc =
        pcre2_match(pre->pattern[pattern], (PCRE2_SPTR)text, length, from, options, matcher->found, matcher->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(pre->pattern[pattern], (PCRE2_SPTR)text, length, from, options | PCRE2_NO_JIT, matcher->found,
                         matcher->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const size_t *ovector = pcre2_get_ovector_pointer(matcher->found);
        *begin = ovector[0];
        *end = ovector[1];
    } else if (rc != PCRE2_ERROR_NOMATCH) {
        char error[128] = "";
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)error, sizeof error);
        return qn_fail(rc == PCRE2_ERROR_NOMEMORY ? QN_ERR_MEMORY : QN_ERR_UNSUPPORTED,
                       "pre-tokeniser '%s': matching a text of %zu bytes: %s", pre->regex_spec->name, length, error);
    }
    return QN_OK;
}

static qn_status split(const qn_pretokenizer *pre, size_t pattern, qn_matcher *matcher, const char *text, size_t length,
                       qn_piece_fn emit, void *user)
{
    if (pattern == MAX_PATTERNS || pattern == pre->n_patterns)
        return emit(user, text, length);
    for (size_t at = 0; at < length;) {
        bool found;
        size_t begin, end;
        QN_TRY(match(pre, pattern, matcher, text, length, at, &found, &begin, &end));
        if (!found)
            begin = end = length;
        if (begin > at)
            QN_TRY(split(pre, pattern + 1, matcher, text + at, begin - at, emit, user));
        if (end > begin)
            QN_TRY(split(pre, pattern + 1, matcher, text + begin, end - begin, emit, user));
        at = end;
    }
    return QN_OK;
}

qn_status qn_pretokenize(const qn_pretokenizer *pre, qn_matcher *matcher, const char *text, size_t length,
                         qn_piece_fn emit, void *user)
{
    return split(pre, 0, matcher, text, length, emit, user);
}
