/* Keys of a Windows console as the bytes that terminals send for them, which the line editor reads. A console of
 * Windows 10 sends those itself (ENABLE_VIRTUAL_TERMINAL_INPUT), a character a key; others, and Wine, name the keys.
 * Nothing here is a function of Windows, so that it is tested on every system. */
#ifndef QN_CLI_WIN32_KEYS_H
#define QN_CLI_WIN32_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A KEY_EVENT_RECORD: its numbers of keys and bits of state are those of Windows. */
typedef struct qn_key {
    bool is_down;
    uint16_t n;     /* how often it was pressed */
    uint16_t code;  /* which one; 0: a character alone */
    uint16_t unit;  /* a character, or half of one, of UTF-16; 0: none */
    uint32_t state; /* which others are held */
} qn_key;

enum { QN_KEY_BYTES = 16 };

/* Zero it before use. */
typedef struct qn_keys {
    char bytes[QN_KEY_BYTES]; /* of the last key */
    size_t n_bytes, n_taken;
    unsigned n_more;     /* times that they come again */
    uint16_t first_half; /* of a character of two units, whose second has not come */
} qn_keys;

/* qn_keys_put - takes a key when the bytes of the one before were taken. Those of keys that mean nothing are none. */
void qn_keys_put(qn_keys *keys, const qn_key *key);

/* qn_keys_has - whether there are bytes to take. */
bool qn_keys_has(const qn_keys *keys);

/* qn_keys_take - takes at most `size` bytes. Returns their number. */
size_t qn_keys_take(qn_keys *keys, char *bytes, size_t size);

#endif
