/* Tokenises texts for a comparison with other tokenisers: reads lines of hexadecimal bytes and prints for each one a
 * line: the token ids, a semicolon, and the bytes of the tokens' pieces in hexadecimal.
 *
 * usage: tokenize_lines VOCABULARY.gguf [special]    special: control tokens in the texts become their ids */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes a line in place; returns the number of bytes. */
static size_t decode(char *line)
{
    size_t n = 0;
    for (; digit(line[2 * n]) >= 0 && digit(line[2 * n + 1]) >= 0; n++)
        line[n] = (char)(digit(line[2 * n]) * 16 + digit(line[2 * n + 1]));
    return n;
}

static int print_tokens(const qn_tokenizer *tok, const char *text, size_t length, bool special)
{
    int32_t *tokens;
    size_t count, n;
    const char *bytes;
    if (qn_tokenizer_encode(tok, text, length, special, false, &tokens, &count)) {
        fprintf(stderr, "%s\n", qn_error_text());
        return 1;
    }
    for (size_t i = 0; i < count; i++)
        printf("%s%d", i ? " " : "", (int)tokens[i]);
    putchar(';');
    for (size_t i = 0; i < count; i++)
        if (qn_tokenizer_piece(tok, tokens[i], &bytes, &n) == QN_OK)
            for (size_t b = 0; b < n; b++)
                printf("%02x", (unsigned char)bytes[b]);
    putchar('\n');
    free(tokens);
    return 0;
}

int main(int argc, char **argv)
{
    qn_gguf *file;
    qn_tokenizer *tok = NULL;
    char *line = NULL;
    size_t capacity = 0;
    int failed = 0;
    if (argc < 2 || qn_gguf_open(argv[1], &file)) {
        fprintf(stderr, "%s\n", argc < 2 ? "usage: tokenize_lines VOCABULARY.gguf [special]" : qn_error_text());
        return 2;
    }
    if (qn_tokenizer_create(file, &tok)) {
        fprintf(stderr, "%s\n", qn_error_text());
        failed = 1;
    }
    qn_gguf_close(file);
    while (!failed && getline(&line, &capacity, stdin) > 0)
        failed = print_tokens(tok, line, decode(line), argc > 2 && strcmp(argv[2], "special") == 0);
    free(line);
    qn_tokenizer_free(tok);
    return failed;
}
