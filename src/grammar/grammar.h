/* Constrained output: which bytes, and which tokens, may follow.
 *
 * A grammar is compiled from a JSON schema, "any JSON", a regular expression, a list of choices or a GBNF text to a byte-level
 * pushdown automaton. A state is what the automaton has read so far. A vocabulary prepared once for a tokeniser answers for a
 * state which tokens may follow. A match joins the three to the callbacks of a request (quern/scheduler.h).
 *
 * Bounds. Compilation takes a bounded number of nodes, DFA states and steps: a text that exceeds them is refused in
 * milliseconds (QN_ERR_UNSUPPORTED, with the place). So do masks, and the reading of a text: what exceeds their steps does not
 * follow, and masks are refused. A state has at most QN_GRAMMAR_THREADS alternatives and QN_GRAMMAR_DEPTH
 * open calls, one for each array or object of JSON: what would exceed them may not follow.
 *
 * White space of JSON is that of a qn_json_space (quern/grammar.h). There is none before or after the document.
 *
 * Threads: grammars are immutable and shared freely; a vocabulary locks its cache; states and matches belong to one thread at
 * a time, but for what is said at qn_grammar_match. */
#ifndef QN_GRAMMAR_GRAMMAR_H
#define QN_GRAMMAR_GRAMMAR_H

#include "quern/grammar.h"
#include "quern/quern.h"
#include "chat/output_parser.h"
#include "text/tokenizer.h"

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_GRAMMAR_THREADS = 512, QN_GRAMMAR_DEPTH = 256 };

typedef struct qn_grammar_options {
    bool strict; /* an unsupported keyword is QN_ERR_UNSUPPORTED; else it is ignored */
    bool closed; /* objects that have properties and do not say whether there are additional ones have none */
    qn_json_style style;
} qn_grammar_options;

/* qn_grammar_from_schema - compile a JSON schema.
 *
 *   schema    an object or a boolean; not kept. `#` and `#/...` references are resolved in it
 *   options   NULL for all 0
 *   out       free it with qn_grammar_free (quern/grammar.h)
 *
 * Supported: type, enum, const, properties, patternProperties, required, additionalProperties, minProperties, maxProperties,
 * items, prefixItems, minItems, maxItems, minLength, maxLength, pattern, format (qn_schema_format), minimum, maximum,
 * exclusiveMinimum, exclusiveMaximum (numbers or draft 4's booleans), anyOf, oneOf (as anyOf), allOf (merged), if, then, else (as
 * alternatives: schema_if.c), not (of strings), $ref, $defs, definitions, $anchor,
 * nullable. Annotations are skipped. A schema without a type has those that its keywords are about, or all if it has none.
 * Constants are those that fit all other keywords.
 *
 * strict refuses what could let through a value that does not validate: alternatives of oneOf that are not shown to exclude
 * each other, nullable, formats that are not known, and minProperties beyond the required ones and one more where names are
 * free.
 *
 * Each property occurs at most once; additional keys may repeat. In strings of enum, const, pattern and in the names of
 * properties an ASCII character has one spelling, its short escape where JSON needs one; others may be written as \uXXXX. In
 * an object with a property outside ASCII, keys have all other characters as they are, or all as \uXXXX in lower case.
 *
 * QN_ERR_INVALID       the schema is malformed, or nothing validates; with the path in the schema. Numbers of its keywords are
 *                      checked wherever they stand, whether their branch has values or not
 * QN_ERR_UNSUPPORTED   an unsupported keyword in strict mode, a least count above INT32_MAX (a greatest one is none), or the
 *                      schema is too large: work and memory are bounded, whatever it repeats or refers to */
qn_status qn_grammar_from_schema(const json_t *schema, const qn_grammar_options *options, qn_grammar **out);

/* qn_grammar_from_json - compile "any JSON value", or with `object` "any JSON object". */
qn_status qn_grammar_from_json(bool object, qn_json_style style, qn_grammar **out);

/* qn_grammar_from_regex - compile a regular expression that the whole output matches.
 *
 * ECMAScript's syntax with the u flag: alternatives, groups, classes, \d \w \s \D \W \S, \xHH, \uHHHH, \u{H}, quantifiers
 * (lazy ones as greedy). ^ and $ are allowed at the ends only. Back references, look-around, word boundaries and \p are
 * QN_ERR_UNSUPPORTED. Characters are code points in UTF-8. */
qn_status qn_grammar_from_regex(const char *regex, size_t length, qn_grammar **out);

/* qn_grammar_from_choices - compile a list of texts, one of which is the output. At least one; UTF-8 is not required. */
qn_status qn_grammar_from_choices(const char *const *choices, size_t n_choices, qn_grammar **out);

/* qn_grammar_from_gbnf - compile a grammar in llama.cpp's syntax, whose rule `root` is the output. Left recursion and rules
 * that derive no text are QN_ERR_INVALID, naming the rule. */
qn_status qn_grammar_from_gbnf(const char *text, size_t length, qn_grammar **out);

/* Delimiters of an output that are tokens of the vocabulary: bytes that no text in UTF-8 has, so that they are no part of texts. */
enum { QN_MARK_CALL_OPEN = 0xf8, QN_MARK_CALL_CLOSE, QN_MARK_THINK_OPEN, QN_MARK_THINK_CLOSE, QN_MARKS_END };

typedef struct qn_grammar_calls {
    const qn_output_params *output; /* the form of calls, and their delimiters */
    const json_t *tools;            /* as in qn_output_params */
    const char *name;               /* the only function that may be called; NULL: any */
    bool is_lazy;   /* text may come first. The grammar begins behind the first call_open, but in the form llama3,
                                       where it has the text: what begins with neither a brace nor space is no call */
    bool is_single; /* at most one call. Always in the form llama3 */
    json_t *format; /* a schema: content that fits it may come in place of calls, which are not lazy then; NULL: none */
    bool is_format_strict;
    qn_json_style style; /* of arguments and the format */
} qn_grammar_calls;

/* qn_grammar_from_calls - compile the tool calls of an answer: one or several, as chat templates print them.
 *
 * Arguments follow the tools' schemas; objects that have properties and do not say whether there are additional ones have none.
 * Keywords that are not supported are errors for tools with `strict`, else ignored. In the form xml, strings are raw text up to
 * "\n</parameter>".
 *
 * QN_ERR_INVALID       a tool without a name, two of one name, or a malformed schema; no tool of the name
 * QN_ERR_UNSUPPORTED   the form has no calls; an unsupported keyword; a name that the form cannot have */
qn_status qn_grammar_from_calls(const qn_grammar_calls *calls, qn_grammar **out);

/* qn_grammar_share - another reference; returns the grammar. qn_grammar_free (quern/grammar.h) drops one: the last, after the
 * grammar's states and matches. */
qn_grammar *qn_grammar_share(qn_grammar *grammar);

/* qn_grammar_bytes - memory of the grammar. */
size_t qn_grammar_bytes(const qn_grammar *grammar);

/* ---- States ---- */

typedef struct qn_grammar_state qn_grammar_state;

/* qn_grammar_state_create - the state before the first byte. The grammar must outlive it. Free with qn_grammar_state_free. */
qn_status qn_grammar_state_create(const qn_grammar *grammar, qn_grammar_state **out);
qn_status qn_grammar_state_clone(const qn_grammar_state *state, qn_grammar_state **out);
void qn_grammar_state_free(qn_grammar_state *state);

/* qn_grammar_state_advance - read bytes: true if they may follow, else the state is unchanged. */
bool qn_grammar_state_advance(qn_grammar_state *state, const char *bytes, size_t length);

/* qn_grammar_state_accepts - whether bytes may follow. The state is scratch memory, unchanged at return. */
bool qn_grammar_state_accepts(qn_grammar_state *state, const char *bytes, size_t length);

/* qn_grammar_state_is_finished - whether the output may end here. More may follow all the same. */
bool qn_grammar_state_is_finished(const qn_grammar_state *state);

/* ---- Masks ---- */

/* A vocabulary as a trie, with the tokens that fit into a JSON string found beforehand, and a cache of the last masks. */
typedef struct qn_grammar_vocab qn_grammar_vocab;

/* qn_grammar_vocab_create - prepare a tokeniser's vocabulary.
 *
 *   tokenizer   not needed afterwards
 *   output      its delimiters that are tokens are marks of grammars; NULL: none
 *   n_cached    masks to keep, of n_vocab / 8 bytes each; 0: none
 *   out         free it with qn_grammar_vocab_free
 *
 * Control tokens, empty tokens and tokens of more than 255 bytes never follow; end tokens do where the output may end. */
qn_status qn_grammar_vocab_create(const qn_tokenizer *tokenizer, const qn_output_params *output, size_t n_cached,
                                  qn_grammar_vocab **out);
void qn_grammar_vocab_free(qn_grammar_vocab *vocab);

/* qn_grammar_vocab_bytes - the bytes of a text token, NULL for control tokens and others that never follow. */
const char *qn_grammar_vocab_bytes(const qn_grammar_vocab *vocab, qn_token token, size_t *length);

/* qn_grammar_mask - the tokens that may follow: writes bit t % 32 of allowed[t / 32], (n_vocab + 31) / 32 words.
 *
 * The state is scratch memory, unchanged at return. QN_ERR_UNSUPPORTED if a grammar is so ambiguous that the mask takes too
 * many steps; allowed is unspecified then. */
qn_status qn_grammar_mask(qn_grammar_vocab *vocab, qn_grammar_state *state, uint32_t *allowed);

/* ---- Requests ---- */

/* A request's state. `accepts` and `mask` are not called at the same time, nor with another function of the match. */
typedef struct qn_grammar_match qn_grammar_match;

enum { QN_GRAMMAR_TRIGGERS = 2 };

/* What ends a part of the free text: a text that was written, or a token that was generated. */
typedef struct qn_grammar_trigger_text {
    const char *text; /* [n] at most 255 bytes, copied; n 0: none */
    size_t n;
    qn_token token; /* < 0: none */
} qn_grammar_trigger_text;

/* Where the grammar begins: the text before is free, end tokens included, until the triggers were met one after the other. What
 * follows the last in the same token must fit already. With an `opening_token` the text up to the first trigger is free only if
 * it is the first token, which it may be; else there is none, and the first trigger counts as met. */
typedef struct qn_grammar_start {
    qn_grammar_trigger_text triggers[QN_GRAMMAR_TRIGGERS];
    size_t n_triggers;      /* 0: the grammar begins at the first token */
    qn_token opening_token; /* < 0: none */
    bool repeats;           /* after an end token, other than in free text, the grammar begins again */
} qn_grammar_start;

/* qn_grammar_match_create - the match of a request.
 *
 *   vocab, grammar   must outlive it
 *   start            NULL: at the first token
 *   out              free it with qn_grammar_match_free */
qn_status qn_grammar_match_create(qn_grammar_vocab *vocab, const qn_grammar *grammar, const qn_grammar_start *start,
                                  qn_grammar_match **out);
void qn_grammar_match_free(qn_grammar_match *match);

/* qn_grammar_match_clone - a copy, with the same lifetimes. */
qn_status qn_grammar_match_clone(const qn_grammar_match *match, qn_grammar_match **out);

/* qn_grammar_match_bytes - memory of the match now, without the grammar. */
size_t qn_grammar_match_bytes(const qn_grammar_match *match);

/* qn_grammar_match_accepts, qn_grammar_match_mask - accepts and mask of qn_request_params, with the match as `user`.
 *
 * QN_ERR_UNSUPPORTED if the grammar is too ambiguous for a mask or a token, if the answer has a token that may not follow, or if
 * no token of the vocabulary may follow it; with the byte of the answer's text and the rule (of schemas: the path); allowed is
 * unspecified then. `accepts`, which threads of steps call, takes fewer steps: it says no where that is not enough,
 * and the mask decides.
 *
 * Distribution. Let p be the softmax of the logits and A the allowed tokens. Checking first gives p(t) for t in A, plus
 * (1 - p(A)) p(t) / p(A) after a rejection: p(t) / p(A), the distribution of masking before sampling. With top-k, top-p or
 * min-p it differs: the first draw is from tokens left by filters of all tokens, not of A. With top-k 2 and probabilities 0.40
 * (rejected), 0.35, 0.25 checking first gives 0.78 and 0.22, masking first 0.58 and 0.42. So qn_grammar_match_check_first says
 * whether `accepts` may be set; where it may not, the request has `mask` alone, which is exact for every filter. */
bool qn_grammar_match_accepts(void *match, const qn_token *answer, size_t n, qn_token token);
qn_status qn_grammar_match_mask(qn_grammar_match *match, const qn_token *answer, size_t n, uint32_t *allowed);
bool qn_grammar_match_check_first(const qn_sampling *sampling);

/* qn_grammar_match_quick_mask - the mask, if it takes a sixteenth of the steps that qn_grammar_match_mask may take, about a
 * millisecond. False: it takes more, or there is an error, which qn_grammar_match_mask gives. */
bool qn_grammar_match_quick_mask(qn_grammar_match *match, const qn_token *answer, size_t n, uint32_t *allowed);

/* qn_grammar_match_masks - the masks of what follows each of `n_more` tokens behind an answer of n.
 *
 *   answer   [n + n_more]
 *   masks    [n_more, n_words] zeros
 *
 * Returns the number of those that take as many steps together as qn_grammar_match_quick_mask allows. The match is not moved on. */
size_t qn_grammar_match_masks(const qn_grammar_match *match, const qn_token *answer, size_t n, size_t n_more, size_t n_words,
                              uint32_t *masks);

/* A state of a grammar, as a hash with a secret of the process. */
typedef struct qn_grammar_key {
    uint64_t words[2];
} qn_grammar_key;

/* qn_grammar_match_key - matches of one vocabulary with equal keys have the same mask.
 *
 * Keys of two grammars differ, and compiled grammars are those of a scope (qn_grammar_create_in): so no mask is shared between
 * scopes. The cache of masks has the same keys. Returns false, without a key, in free text, where tokens are not those of the
 * grammar alone, and where qn_grammar_match_mask fails. */
bool qn_grammar_match_key(qn_grammar_match *match, const qn_token *answer, size_t n, qn_grammar_key *key);

enum { QN_GRAMMAR_FORCED = 256 };

/* qn_grammar_match_forced - the text that must follow.
 *
 *   text     its bytes: the longest one that every output of the grammar goes on with here, marks included, at most
 *            QN_GRAMMAR_FORCED bytes. It may end inside a character
 *   length   0 where several bytes may follow or the output may end, in free text, and where the mask fails */
qn_status qn_grammar_match_forced(qn_grammar_match *match, const qn_token *answer, size_t n, char text[QN_GRAMMAR_FORCED],
                                  size_t *length);

/* qn_grammar_match_forced_tokens - tokens that may be appended at once, without sampling.
 *
 *   tokenizer   of the match's vocabulary
 *   sequence    [n] the tokens so far, prompt and answer; its last n_answer ones are the answer
 *   tokens      the tokens that follow; n_tokens 0: none
 *
 * The bytes of the tokens are the beginning of the forced text: decoding under the mask, token by token, writes the same bytes
 * there, whatever the logits and the sampling. The tokens need not be the same: they are those of the canonical tokenisation of
 * the text so far (its last 256 bytes, from the last special token on) with the forced text, where decoding may spell it with
 * others (`"` and `, "` for `", "`). What is sampled behind them follows the canonical tokens, so it may differ.
 *
 *   - Tokens of the sequence do not change. Where the canonical tokenisation has a token across the end of the sequence, there are
 *     none.
 *   - Tokens at the end of the forced text are left to the model where another token could take their bytes and some of what
 *     follows: no token that the grammar allows begins in the tokens that are kept and ends behind the forced text.
 *   - Each token may follow by the mask; the match is not moved on.
 *
 * Takes 20 us, with the alternatives of 50 tools 150, and 1 us or less where nothing is forced. A grammar that is so ambiguous that it
 * takes much longer has fewer tokens. */
qn_status qn_grammar_match_forced_tokens(qn_grammar_match *match, const qn_tokenizer *tokenizer, const qn_token *sequence,
                                         size_t n, size_t n_answer, qn_token tokens[QN_GRAMMAR_FORCED], size_t *n_tokens);

/* qn_grammar_match_is_finished - whether the output may end after the tokens that were seen. */
bool qn_grammar_match_is_finished(const qn_grammar_match *match);

#endif
