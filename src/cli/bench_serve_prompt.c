/* Prompts of a given number of tokens for a server with an unknown tokeniser: words whose tokens the server has
 * counted. */
#include "cli/bench_serve.h"

#include "base/memory.h"
#include "base/splitmix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 28 };

/* Each word, with a space before it, is one token in current vocabularies. */
static const char *const frequent[] = {
    "the",   "of",   "and",   "to",    "in",    "is",     "that",  "for",   "was",     "on",    "are",    "with",
    "as",    "they", "be",    "at",    "one",   "have",   "this",  "from",  "by",      "not",   "but",    "what",
    "some",  "we",   "can",   "out",   "other", "were",   "all",   "there", "when",    "up",    "use",    "your",
    "how",   "said", "an",    "each",  "she",   "which",  "do",    "their", "time",    "if",    "will",   "way",
    "about", "many", "then",  "them",  "would", "like",   "so",    "these", "her",     "long",  "make",   "thing",
    "see",   "him",  "two",   "has",   "look",  "more",   "day",   "could", "go",      "come",  "did",    "my",
    "sound", "no",   "most",  "who",   "over",  "know",   "water", "than",  "call",    "first", "people", "may",
    "down",  "side", "been",  "now",   "find",  "any",    "new",   "work",  "part",    "take",  "get",    "place",
    "made",  "live", "where", "after", "back",  "little", "only",  "round", "man",     "year",  "came",   "show",
    "every", "good", "me",    "give",  "our",   "under",  "name",  "very",  "through",
};

bool qn_bench_serve_words_read(qn_bench_serve_words *words, const char *path)
{
    size_t length, capacity = 0;
    *words = (qn_bench_serve_words){ .tokens_per_word = 1 };
    if (!path) {
        const size_t n = sizeof frequent / sizeof *frequent;
        if (qn_realloc_array(&words->words, &capacity, n, sizeof *words->words, "words"))
            return qn_cli_fail() == QN_EXIT_DONE;
        memcpy(words->words, frequent, sizeof frequent);
        words->n = n;
        return true;
    }
    if (!qn_read_all(strcmp(path, "-") == 0 ? NULL : path, MAX_FILE, &words->text, &length))
        return false;
    char *save = NULL;
    for (char *word = strtok_r(words->text, " \t\r\n", &save); word; word = strtok_r(NULL, " \t\r\n", &save)) {
        if (qn_realloc_array(&words->words, &capacity, words->n + 1, sizeof *words->words, "words"))
            return qn_cli_fail() == QN_EXIT_DONE;
        words->words[words->n++] = word;
    }
    if (!words->n)
        qn_cli_error("%s: the file has no words", path);
    return words->n > 0;
}

void qn_bench_serve_words_free(qn_bench_serve_words *words)
{
    free(words->text);
    free(words->words);
    *words = (qn_bench_serve_words){ 0 };
}

void qn_bench_serve_words_measured(qn_bench_serve_words *words, const size_t n_words[2], const uint64_t n_tokens[2])
{
    if (n_tokens[1] <= n_tokens[0])
        return;
    words->tokens_per_word = (double)(n_tokens[1] - n_tokens[0]) / (double)(n_words[1] - n_words[0]);
    const double around = (double)n_tokens[0] - words->tokens_per_word * (double)n_words[0];
    words->tokens_around = around > 0 ? around : 0;
}

size_t qn_bench_serve_words_for(const qn_bench_serve_words *words, size_t n_tokens)
{
    const double n = ((double)n_tokens - words->tokens_around) / words->tokens_per_word;
    return n > 1 ? (size_t)lround(n) : 1;
}

char *qn_bench_serve_prompt(const qn_bench_serve_words *words, size_t n_words, uint64_t seed)
{
    char *text = NULL;
    for (int pass = 0; pass < 2; pass++) { /* the length, then the text */
        uint64_t random = seed;
        const uint64_t from = qn_splitmix(&random);
        size_t used = 0;
        for (size_t i = 0; i < n_words; i++) {
            const char *word = words->words[(words->text ? from + i : qn_splitmix(&random)) % words->n];
            const size_t length = strlen(word);
            if (text) {
                memcpy(text + used, word, length);
                text[used + length] = i + 1 < n_words ? ' ' : '\0';
            }
            used += length + 1;
        }
        if (!text && qn_alloc(&text, used, 1, "text of a prompt"))
            return NULL;
    }
    return text;
}
