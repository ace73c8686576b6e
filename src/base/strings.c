/* The functions, in ISO C. */
#include "base/strings.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- Search ---- */

/* Rabin and Karp: a rolling hash finds the candidates. */
static const unsigned char *find_by_hash(const unsigned char *text, size_t length, const unsigned char *wanted,
                                         size_t n)
{
    const uint64_t factor = 0x9e3779b97f4a7c15u;
    uint64_t target = 0, hash = 0, highest = 1;
    for (size_t i = 0; i < n; i++) {
        target = target * factor + wanted[i];
        hash = hash * factor + text[i];
        highest *= i ? factor : 1;
    }
    for (size_t at = 0;; at++) {
        if (hash == target && !memcmp(text + at, wanted, n))
            return text + at;
        if (at + n >= length)
            return NULL;
        hash = (hash - text[at] * highest) * factor + text[at + n];
    }
}

void *qn_memmem(const void *text, size_t length, const void *wanted, size_t n)
{
    const unsigned char *at = text, *const begin = text, *const w = wanted;
    if (n == 0)
        return (void *)(uintptr_t)begin;
    size_t candidates = 0;
    while (length - (size_t)(at - begin) >= n && n <= length) {
        const size_t left = length - (size_t)(at - begin);
        at = memchr(at, *w, left - n + 1);
        if (!at)
            return NULL;
        if (!memcmp(at, w, n))
            return (void *)(uintptr_t)at;
        /* Text in which the first byte is frequent would take the product of both lengths. */
        if (++candidates > 16 + (size_t)(at - begin) / 8)
            return (void *)(uintptr_t)find_by_hash(at, length - (size_t)(at - begin), w, n);
        at++;
    }
    return NULL;
}

void *qn_memrchr(const void *text, int byte, size_t length)
{
    const unsigned char *bytes = text;
    while (length > 0)
        if (bytes[--length] == (unsigned char)byte)
            return (void *)(uintptr_t)(bytes + length);
    return NULL;
}

static int lower(char c)
{
    return c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : (unsigned char)c;
}

char *qn_strcasestr(const char *text, const char *wanted)
{
    for (;; text++) {
        size_t n = 0;
        while (wanted[n] && lower(text[n]) == lower(wanted[n]))
            n++;
        if (!wanted[n])
            return (char *)(uintptr_t)text;
        if (!*text)
            return NULL;
    }
}

/* ---- Copies and lines ---- */

void *qn_mempcpy(void *to, const void *from, size_t length)
{
    memcpy(to, from, length);
    return (char *)to + length;
}

char *qn_strndup(const char *text, size_t n)
{
    const char *end = memchr(text, '\0', n);
    const size_t length = end ? (size_t)(end - text) : n;
    char *copy = malloc(length + 1);
    if (copy) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

char *qn_strsep(char **rest, const char *delimiters)
{
    char *part = *rest;
    if (!part)
        return NULL;
    char *end = part + strcspn(part, delimiters);
    *rest = *end ? end + 1 : NULL;
    *end = '\0';
    return part;
}

ptrdiff_t qn_getline(char **line, size_t *capacity, FILE *file)
{
    size_t length = 0;
    int c;
    if (!*line)
        *capacity = 0;
    do {
        if (length + 2 > *capacity) {
            const size_t grown = *capacity ? 2 * *capacity : 128;
            char *moved = grown > *capacity ? realloc(*line, grown) : NULL;
            if (!moved)
                return -1;
            *line = moved;
            *capacity = grown;
        }
        c = getc(file);
        if (c == EOF)
            break;
        (*line)[length++] = (char)c;
    } while (c != '\n');
    (*line)[length] = '\0';
    return length ? (ptrdiff_t)length : -1;
}

void qn_wipe(void *bytes, size_t n)
{
    for (volatile unsigned char *at = bytes; n > 0; n--)
        *at++ = 0;
}

/* ---- Sorting ---- */

struct order {
    size_t size;
    int (*compare)(const void *a, const void *b, void *context);
    void *context;
};

/* Stable, and quadratic: for a few elements, or without memory. */
static void insertion_sort(char *base, size_t n, const struct order *o)
{
    for (size_t i = 1; i < n; i++)
        for (size_t at = i; at > 0; at--) {
            char *left = base + (at - 1) * o->size, *right = left + o->size;
            if (o->compare(left, right, o->context) <= 0)
                break;
            for (size_t b = 0; b < o->size; b++) {
                const char byte = left[b];
                left[b] = right[b];
                right[b] = byte;
            }
        }
}

/* Merges the sorted halves; `copy` is of the left one. */
static void merge(char *base, size_t n_left, size_t n, char *copy, const struct order *o)
{
    const char *left = copy, *const left_end = copy + n_left * o->size;
    const char *right = base + n_left * o->size, *const right_end = base + n * o->size;
    memcpy(copy, base, n_left * o->size);
    for (char *to = base; left < left_end; to += o->size) {
        const bool takes_right = right < right_end && o->compare(left, right, o->context) > 0;
        memcpy(to, takes_right ? right : left, o->size);
        if (takes_right)
            right += o->size;
        else
            left += o->size;
    }
}

static void merge_sort(char *base, size_t n, char *copy, const struct order *o)
{
    if (n <= 8) {
        insertion_sort(base, n, o);
        return;
    }
    const size_t n_left = n / 2;
    merge_sort(base, n_left, copy, o);
    merge_sort(base + n_left * o->size, n - n_left, copy, o);
    if (o->compare(base + (n_left - 1) * o->size, base + n_left * o->size, o->context) > 0)
        merge(base, n_left, n, copy, o);
}

void qn_sort(void *base, size_t n, size_t size, int (*compare)(const void *a, const void *b, void *context),
             void *context)
{
    const struct order order = { size, compare, context };
    char *copy = n > 8 && size ? malloc(n / 2 * size) : NULL;
    if (copy)
        merge_sort(base, n, copy, &order);
    else
        insertion_sort(base, n, &order);
    free(copy);
}
