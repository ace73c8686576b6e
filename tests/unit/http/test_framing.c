/* Header blocks: which are complete, and which are not those of requests. tests/server/serve_framing.py has the same of
 * a server. */
#include "helper_assert.h"

#include "base/append.h"
#include "http/framing.h"

/* In a block of its own size, so that a sanitizer sees a byte too many. */
static qn_head head_of(const char *text, size_t n, size_t *length, const char **why)
{
    char *const copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    qn_framing framing = { 0 };
    const qn_head head = qn_framing_read(&framing, copy, n, why);
    *length = framing.at;
    free(copy);
    return head;
}

TEST(valid_blocks_are_complete_at_their_end)
{
    static const char *const blocks[] = {
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "POST /v1/messages?beta=true HTTP/1.1\r\nhost:a\r\ncontent-length:\t12 \t\r\nX:\r\nY: \xc3\xa9\t\xff\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: Chunked\r\n\r\n",
        "M-SEARCH * HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999\r\n\r\n",
    };
    for (size_t i = 0; i < COUNT(blocks); i++) {
        const size_t n = strlen(blocks[i]);
        size_t length = 0;
        const char *why;
        for (size_t part = 0; part < n; part++)
            if (head_of(blocks[i], part, &length, &why) != QN_HEAD_PART)
                fail_msg("block %zu: not a part with %zu bytes: %s", i, part, why ? why : "complete");
        if (head_of(blocks[i], n, &length, &why) != QN_HEAD_COMPLETE || length != n)
            fail_msg("block %zu: %s, %zu bytes", i, why ? why : "no end", length);
    }
    size_t length;
    const char *why;
    const char two[] = "GET / HTTP/1.0\r\n\r\nGET \n";
    assert_int_equal(head_of(two, sizeof two - 1, &length, &why), QN_HEAD_COMPLETE);
    assert_int_equal(length, 18);
}

/* Bytes come one by one: the same blocks, read on. */
TEST(parts_are_read_on)
{
    static const char block[] = "\r\nPOST /a?b HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 5\r\n\r\n";
    qn_framing framing = { 0 };
    const char *why;
    for (size_t n = 0; n < sizeof block - 1; n++)
        assert_int_equal(qn_framing_read(&framing, block, n, &why), QN_HEAD_PART);
    assert_int_equal(qn_framing_read(&framing, block, sizeof block - 1, &why), QN_HEAD_COMPLETE);
    assert_int_equal(framing.at, sizeof block - 1);
    assert_true(framing.n_hosts == 1 && framing.n_lengths == 1 && framing.n_encodings == 0);
}

TEST(values_are_counted)
{
    const struct {
        const char *before, *each, *after;
    } many[] = { { "GET / HTTP/1.1\r\nHost: a\r\n", "X:\r\n", "\r\n" },
                 { "GET /?a", "&b", " HTTP/1.1\r\nHost: a\r\n\r\n" },
                 { "GET / HTTP/1.1\r\nHost: a\r\nCookie: a", ";b", "\r\n\r\n" } };
    for (size_t i = 0; i < COUNT(many); i++)
        for (size_t n = QN_FRAMING_VALUES - 10; n < QN_FRAMING_VALUES + 10; n += 15) {
            char block[4096];
            qn_text_buffer text = QN_APPEND_TO(block);
            qn_append(&text, "%s", many[i].before);
            for (size_t k = 0; k < n; k++)
                qn_append(&text, "%s", many[i].each);
            qn_append(&text, "%s", many[i].after);
            const char *why;
            size_t at;
            assert_int_equal(head_of(block, text.length, &at, &why),
                             n > QN_FRAMING_VALUES ? QN_HEAD_LARGE : QN_HEAD_COMPLETE);
        }
}

#define START "GET / HTTP/1.1\r\nHost: a\r\n"
#define BLOCK(text)                                                                                                    \
    {                                                                                                                  \
        text, sizeof text - 1                                                                                          \
    }

TEST(invalid_blocks_are_told)
{
    static const struct {
        const char *text;
        size_t n;
    } blocks[] = {
        BLOCK("GET / HTTP/1.1\n"),
        BLOCK("GET / HTTP/1.1\rX"),
        BLOCK("\n"),
        BLOCK("\rG"),
        BLOCK("GET / HTTP/1.1 \r\n"),
        BLOCK("GET  / HTTP/1.1\r\n"),
        BLOCK("GET /a b HTTP/1.1\r\n"),
        BLOCK("GET /a\tb HTTP/1.1\r\n"),
        BLOCK("GET /a\0b HTTP/1.1\r\n"),
        BLOCK("GET /\x7f HTTP/1.1\r\n"),
        BLOCK("GET /\r\n"),
        BLOCK("GET\r\n"),
        BLOCK("GET  HTTP/1.1\r\n"),
        BLOCK(" / HTTP/1.1\r\n"),
        BLOCK("G T / HTTP/1.1\r\n"),
        BLOCK("G\xc3\xa9T / HTTP/1.1\r\n"),
        BLOCK("GET / HTTP/1.2\r\n"),
        BLOCK("GET / HTTP/2.0\r\n"),
        BLOCK("GET / http/1.1\r\n"),
        BLOCK("GET / HTTP/1.1x\r\n"),
        BLOCK(START "X : a\r\n"),
        BLOCK(START "X\t: a\r\n"),
        BLOCK(START " X: a\r\n"),
        BLOCK(START "X: a\r\n b\r\n"),
        BLOCK(START "X: a\r\n\tb\r\n"),
        BLOCK(START "X: a\rb\r\n"),
        BLOCK(START "X: a\r\r\n"),
        BLOCK(START "X: a\nY: b\r\n"),
        BLOCK(START "X: a\0b\r\n"),
        BLOCK(START "X\0: b\r\n"),
        BLOCK(START "X: \x1b[2J\r\n"),
        BLOCK(START "X: \x0c"
                    "a\r\n"),
        BLOCK(START "X: \x7f\r\n"),
        BLOCK(START ": a\r\n"),
        BLOCK(START "X\r\n"),
        BLOCK(START "X(: a\r\n"),
        BLOCK(START "Content-Length:\r\n"),
        BLOCK(START "Content-Length: -5\r\n"),
        BLOCK(START "Content-Length: +5\r\n"),
        BLOCK(START "Content-Length: 0x5\r\n"),
        BLOCK(START "Content-Length: 5, 5\r\n"),
        BLOCK(START "Content-Length: 5 5\r\n"),
        BLOCK(START "Content-Length: 18446744073709551616\r\n"),
        BLOCK(START "Content-Length: 00000000000000000005\r\n"),
        BLOCK(START "Content-Length: 5\r\nContent-Length: 5\r\n\r\n"),
        BLOCK(START "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"),
        BLOCK(START "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
        BLOCK(START "Transfer-Encoding: identity\r\n"),
        BLOCK(START "Transfer-Encoding: gzip, chunked\r\n"),
        BLOCK(START "Transfer-Encoding: chunked;a\r\n"),
        BLOCK(START "Host: a\r\n\r\n"),
        BLOCK("GET / HTTP/1.1\r\n\r\n"),
        BLOCK("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    };
    for (size_t i = 0; i < COUNT(blocks); i++) {
        size_t length;
        const char *why;
        if (head_of(blocks[i].text, blocks[i].n, &length, &why) != QN_HEAD_INVALID || !why || !*why)
            fail_msg("block %zu is not refused: %s", i, blocks[i].text);
    }
}
