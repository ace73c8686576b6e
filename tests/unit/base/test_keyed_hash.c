/* Hashes with the secret of the process: keys that collide by hashes that all know are spread by them, in the tables
 * that have keys of strangers. */
#include "helper_sequence.h"
#include "helper_vocab.h"

#include "base/keyed_hash.h"
#include "cache/prefix_nodes.h"
#include "text/vocab.h"

#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

/* First: no hash was made before. */
TEST(processes_have_different_secrets)
{
    uint64_t found[2] = { 0 };
    for (int i = 0; i < 2; i++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            const uint64_t hash = qn_keyed_hash("a", 1);
            _exit(write(pipes[1], &hash, sizeof hash) != sizeof hash);
        }
        assert_int_equal(read(pipes[0], &found[i], sizeof found[i]), sizeof found[i]);
        close(pipes[0]);
        close(pipes[1]);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    assert_true(found[0] != found[1]);
}

TEST(hashes_depend_on_all)
{
    char text[600] = { 0 };
    const uint64_t none = qn_keyed_hash("", 0);
    for (size_t n = 1; n <= sizeof text; n += n < 40 ? 1 : 37) {
        const uint64_t hash = qn_keyed_hash(text, n), with = qn_keyed_hash_with(text, n, 1);
        const qn_hash128 wide = qn_keyed_hash128(text, n);
        assert_true(hash == qn_keyed_hash(text, n) && hash != none && hash != with);
        assert_true(with != qn_keyed_hash_with(text, n, 2));
        for (size_t i = 0; i < n; i += 1 + n / 20) {
            text[i] ^= 4;
            const qn_hash128 other = qn_keyed_hash128(text, n);
            assert_true(qn_keyed_hash(text, n) != hash && other.low != wide.low && other.high != wide.high);
            text[i] ^= 4;
        }
    }
}

/* ---- Pages of prefixes ---- */

static const uint64_t P1 = UINT64_C(0x9E3779B185EBCA87), P2 = UINT64_C(0xC2B2AE3D27D4EB4F);

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static uint64_t inverse(uint64_t x)
{
    uint64_t y = x;
    for (int i = 0; i < 6; i++)
        y *= 2 - x * y;
    return y;
}

/* Page i of those that have the same XXH64 with a seed: the first word of the second stripe undoes that of the
 * first. */
static void make_page(uint64_t seed, uint64_t i, int32_t tokens[QN_PAGE])
{
    uint64_t words[QN_PAGE / 2] = { 0 };
    const uint64_t begin = seed + P1 + P2, wanted = rotate(begin, 31) * P1; /* the lane's state before it is rotated
                                                                               again */
    words[0] = i;
    words[4] = (wanted - rotate(begin + i * P2, 31) * P1) * inverse(P2);
    memcpy(tokens, words, sizeof words);
}

static size_t longest_bucket(const qn_prefix *p)
{
    size_t longest = 0;
    for (size_t i = 0; i < p->n_buckets; i++) {
        size_t n = 0;
        for (uint32_t at = p->buckets[i]; at != QN_NO_NODE; at = p->nodes[at].next)
            n++;
        longest = n > longest ? n : longest;
    }
    return longest;
}

TEST(pages_that_collide_are_spread)
{
    enum { PAGES = 3000 };
    fixture f = new_fixture(100, false, false);
    qn_prefix *p;
    uint32_t root, child;
    int32_t tokens[QN_PAGE];
    assert_ok(qn_prefix_create(&f.cache, 0, 0, &p));
    assert_ok(qn_nodes_new_root(p, "", &root));
    make_page(root, 0, tokens);
    const uint64_t same = XXH64(tokens, sizeof tokens, root);
    for (uint64_t i = 0; i < PAGES; i++) {
        make_page(root, i, tokens);
        assert_true(XXH64(tokens, sizeof tokens, root) == same);
        assert_ok(qn_nodes_new_child(p, root, qn_token_ids(tokens), &child));
        assert_int_equal(qn_nodes_find_path(p, "", qn_token_ids(tokens), 1), child);
    }
    assert_in_range(longest_bucket(p), 1, 16);
    for (uint32_t at = child; at > root; at--)
        qn_nodes_free(p, at);
    qn_prefix_free(p);
    end_fixture(&f);
}

/* ---- Tokens of a vocabulary ---- */

/* Texts whose XXH3 has the same lower bits, more than the table of the vocabulary has. */
TEST(tokens_that_collide_are_spread)
{
    enum { TOKENS = 1000, BITS = 12, TEXT = 12 };
    static char texts[TOKENS][TEXT];
    static struct added_token added[TOKENS + 1];
    size_t n = 0, run = 0, longest = 0;
    for (unsigned i = 0; n < TOKENS; i++) {
        snprintf(texts[n], TEXT, "x%u", i);
        if (XXH3_64bits(texts[n], strlen(texts[n])) % (1 << BITS))
            continue;
        added[n] = (struct added_token){ texts[n], 1 };
        n++;
    }
    struct file_bytes file = make_vocab(&(struct vocab_spec){ .model = "gpt2", .pre = "gpt-2", .added = added });
    qn_gguf *gguf;
    qn_vocab vocab = { 0 };
    assert_ok(qn_gguf_open_memory(file.data, file.n, "vocabulary", &gguf));
    assert_ok(qn_vocab_load(&vocab, gguf, QN_SPELLING_BYTE_LEVEL));
    assert_true(vocab.slot_mask < 1 << BITS);
    for (size_t i = 0; i <= 2 * vocab.slot_mask; i++) {
        run = vocab.slots[i & vocab.slot_mask] ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    assert_in_range(longest, 1, TOKENS / 2);
    for (size_t i = 0; i < TOKENS; i += 50)
        assert_int_equal(qn_vocab_find(&vocab, texts[i], strlen(texts[i])), 256 + i);
    qn_vocab_free(&vocab);
    qn_gguf_close(gguf);
    free(file.data);
}

/* ---- Pairs ---- */

/* Those that a mixing function which all know has in one place of 4096. */
TEST(pairs_that_collide_are_spread)
{
    enum { PAIRS = 4096, PLACES = 4096 };
    static unsigned counts[PLACES];
    const qn_keyed_words words = qn_keyed_words_get();
    unsigned longest = 0;
    for (uint32_t left = 1, n = 0; n < PAIRS; left++)
        for (uint32_t right = 0; right < 4096 && n < PAIRS; right++) {
            uint64_t h = (uint64_t)left << 32 | right;
            h = (h ^ h >> 33) * 0xff51afd7ed558ccdu;
            h = (h ^ h >> 33) * 0xc4ceb9fe1a85ec53u;
            if ((h ^ h >> 33) % PLACES)
                continue;
            const unsigned count = ++counts[qn_keyed_hash_pair(&words, left, right) % PLACES];
            longest = count > longest ? count : longest;
            n++;
        }
    assert_in_range(longest, 1, PAIRS / 16);
}
