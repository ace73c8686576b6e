/* Constrained output: which bytes and which tokens may follow.
 *
 * A grammar is compiled from a JSON schema, "any JSON", a regular expression, a list of choices or a GBNF text to a
 * byte-level pushdown automaton. A state records what the automaton has read. A vocabulary is prepared once for a
 * tokeniser and computes which tokens may follow a state. A match joins the three to the callbacks of a request
 * (quern/scheduler.h).
 *
 * Bounds. Compilation is limited in nodes, DFA states and steps: a grammar that exceeds them is refused in milliseconds
 * (QN_ERR_UNSUPPORTED, with the place). A mask that takes too many steps is refused, and a text that takes too many may
 * not follow. A state has at most QN_GRAMMAR_THREADS alternatives and QN_GRAMMAR_DEPTH open calls, one for each open
 * array or object of JSON; a byte that would exceed them may not follow.
 *
 * JSON's white space follows a qn_json_space (quern/grammar.h). There is none before or after the document.
 *
 * Threads: grammars are immutable and may be shared; a vocabulary locks its cache; a state or match belongs to one
 * thread at a time, except as said at qn_grammar_match. */
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
    bool strict; /* true: an unsupported keyword is QN_ERR_UNSUPPORTED; false: it is ignored */
    qn_json_style style;
} qn_grammar_options;

/* qn_grammar_from_schema - compiles a JSON schema.
 *
 *   schema    an object or a boolean; not kept. `#` and `#/...` references are resolved in it
 *   options   NULL: all 0
 *   out       free it with qn_grammar_free (quern/grammar.h)
 *
 * Supported: type, enum, const, properties, patternProperties, propertyNames (of strings' keywords), required,
 * additionalProperties, minProperties, maxProperties, dependentRequired, dependentSchemas, dependencies, items,
 * prefixItems, minItems, maxItems, uniqueItems (of constants), minLength, maxLength, pattern, format
 * (qn_schema_format), minimum, maximum, exclusiveMinimum, exclusiveMaximum (numbers or draft 4's booleans), multipleOf
 * (integers), anyOf, oneOf (strict: of alternatives that exclude each other, or can be made to), allOf (merged), if,
 * then, else, not (as alternatives: schema_expand.c), $ref, $defs, definitions, $anchor, nullable. Annotations and
 * keywords that JSON Schema does not define are skipped. A schema without a type has the types to which its keywords
 * apply, or all if it has no such keywords. Of the constants, those that fit all other keywords are allowed.
 *
 * Strict mode refuses what could accept a value that does not validate: keywords of JSON Schema that are not supported
 * or not with this value, misspelled keywords, alternatives of oneOf that overlap where that cannot be negated,
 * nullable, formats of JSON Schema without an expression, and minProperties greater than the number of required
 * properties plus one if names are free.
 *
 * Each declared property occurs at most once; additional keys may repeat. In strings of enum, const and pattern and in
 * names of properties, an ASCII character has one spelling, its short escape if JSON needs one; other characters may be
 * written as \uXXXX. In an object with a declared name outside ASCII, a key has all such characters unescaped, or all
 * as \uXXXX in lower case.
 *
 * QN_ERR_INVALID       the schema is malformed, or no value validates; with the path in the schema. Numbers in keywords
 *                      are checked wherever they stand, even in branches that have no values
 * QN_ERR_UNSUPPORTED   an unsupported keyword in strict mode, a minimum count above INT32_MAX (such a maximum is no
 *                      limit), or a schema that is too large: work and memory are bounded, whatever it repeats or
 *                      refers to */
qn_status qn_grammar_from_schema(const json_t *schema, const qn_grammar_options *options, qn_grammar **out);

/* qn_grammar_from_json - compiles "any JSON value", or with `object` "any JSON object". */
qn_status qn_grammar_from_json(bool object, qn_json_style style, qn_grammar **out);

/* qn_grammar_from_regex - compiles a regular expression that the whole output must match.
 *
 * ECMAScript's syntax with the u flag: alternatives, groups, classes, \d \w \s \D \W \S \p{...} \P{...}, \xHH, \uHHHH,
 * \u{H}, ^ and $ anywhere, \b, \B, look-ahead, quantifiers (lazy ones are greedy). Back references, look-behind, and in
 * look-ahead ^ and word boundaries, are QN_ERR_UNSUPPORTED, and so is an expression whose DFA is too large. Characters
 * are code points in UTF-8. */
qn_status qn_grammar_from_regex(const char *regex, size_t length, qn_grammar **out);

/* qn_grammar_from_choices - compiles a list of texts, at least one; the output is one of them. They need not be
 * UTF-8. */
qn_status qn_grammar_from_choices(const char *const *choices, size_t n_choices, qn_grammar **out);

/* qn_grammar_from_gbnf - compiles a grammar in llama.cpp's syntax; the output is a text of its rule `root`. Left
 * recursion and rules that derive no text are QN_ERR_INVALID; the message names the rule. */
qn_status qn_grammar_from_gbnf(const char *text, size_t length, qn_grammar **out);

/* Marks: bytes that stand for delimiters of the output that are special tokens. They never occur in UTF-8, so no
 * text contains them. */
enum { QN_MARK_CALL_OPEN = 0xf8, QN_MARK_CALL_CLOSE, QN_MARK_THINK_OPEN, QN_MARK_THINK_CLOSE, QN_MARKS_END };

typedef struct qn_grammar_calls {
    const qn_output_params *output; /* the form of calls and their delimiters */
    const json_t *tools;            /* as in qn_output_params */
    const char *name;               /* the only function that may be called; NULL: any */
    bool is_lazy;   /* text may come first. The grammar begins after the first call_open. In the form llama3 it
       covers the text too: an answer that begins with neither a brace nor a space is text */
    bool is_single; /* at most one call; always so in the form llama3 */
    json_t *format; /* NULL, or a schema: content that fits it may come instead of calls, which are not lazy then */
    bool is_format_strict;
    qn_json_style style; /* of arguments and of the format */
} qn_grammar_calls;

/* qn_grammar_from_calls - compiles the tool calls of an answer, one or several, as chat templates print them.
 *
 * Arguments follow the tools' schemas; objects with properties but without additionalProperties allow no others.
 * Unsupported keywords are errors for tools with `strict`, else ignored. In the form xml, strings are raw text up to
 * "\n</parameter>".
 *
 * QN_ERR_INVALID       a tool without a name, two with one name, a malformed schema, or no tool has the name
 * QN_ERR_UNSUPPORTED   the form has no calls, a keyword is unsupported, or the form cannot express a name */
qn_status qn_grammar_from_calls(const qn_grammar_calls *calls, qn_grammar **out);

/* qn_grammar_share - adds a reference; returns the grammar. qn_grammar_free (quern/grammar.h) drops one. The last
 * must be dropped after the grammar's states and matches are freed. */
qn_grammar *qn_grammar_share(qn_grammar *grammar);

/* qn_grammar_bytes - the memory that the grammar takes, in bytes. */
size_t qn_grammar_bytes(const qn_grammar *grammar);

/* ---- States ---- */

typedef struct qn_grammar_state qn_grammar_state;

/* qn_grammar_state_create - creates the state before the first byte. The grammar must outlive it. Free it with
 * qn_grammar_state_free. */
qn_status qn_grammar_state_create(const qn_grammar *grammar, qn_grammar_state **out);
qn_status qn_grammar_state_clone(const qn_grammar_state *state, qn_grammar_state **out);
void qn_grammar_state_free(qn_grammar_state *state);

/* qn_grammar_state_advance - reads bytes. Returns false, with the state unchanged, if they may not follow. */
bool qn_grammar_state_advance(qn_grammar_state *state, const char *bytes, size_t length);

/* qn_grammar_state_accepts - whether bytes may follow. The state is scratch memory, unchanged at return. */
bool qn_grammar_state_accepts(qn_grammar_state *state, const char *bytes, size_t length);

/* qn_grammar_state_is_finished - whether the output may end here. More may be allowed to follow, too. */
bool qn_grammar_state_is_finished(const qn_grammar_state *state);

/* ---- Masks ---- */

/* A vocabulary as tries, with precomputed sets of the tokens that fit into a JSON string, and a cache of masks. */
typedef struct qn_grammar_vocab qn_grammar_vocab;

/* qn_grammar_vocab_create - prepares a tokeniser's vocabulary.
 *
 *   tokenizer   not needed afterwards
 *   output      its delimiters that are tokens become marks; NULL: none
 *   n_cached    number of masks to cache, of n_vocab / 8 bytes each; 0: none
 *   out         free it with qn_grammar_vocab_free
 *
 * Control tokens, empty tokens and tokens of more than 255 bytes never follow. End tokens follow wherever the output
 * may end. */
qn_status qn_grammar_vocab_create(const qn_tokenizer *tokenizer, const qn_output_params *output, size_t n_cached,
                                  qn_grammar_vocab **out);
void qn_grammar_vocab_free(qn_grammar_vocab *vocab);

/* qn_grammar_vocab_bytes - the bytes of a token; NULL for control tokens and others that never follow. */
const char *qn_grammar_vocab_bytes(const qn_grammar_vocab *vocab, qn_token token, size_t *length);

/* qn_grammar_mask - writes the tokens that may follow: bit t % 32 of allowed[t / 32], (n_vocab + 31) / 32 words.
 *
 * The state is scratch memory, unchanged at return. QN_ERR_UNSUPPORTED if the grammar is so ambiguous that the mask
 * takes too many steps; allowed is unspecified then. */
qn_status qn_grammar_mask(qn_grammar_vocab *vocab, qn_grammar_state *state, uint32_t *allowed);

/* ---- Requests ---- */

/* The state of a request. `accepts` and `mask` must not run at the same time, nor at the same time as another
 * function of the match. */
typedef struct qn_grammar_match qn_grammar_match;

enum { QN_GRAMMAR_TRIGGERS = 2 };

/* The end of a piece of free text: a text that is written, or a token that is generated. */
typedef struct qn_grammar_trigger_text {
    const char *text; /* [n] at most 255 bytes, copied; n = 0: none */
    size_t n;
    qn_token token; /* < 0: none */
} qn_grammar_trigger_text;

/* Where the grammar begins. The text before it is free, end tokens included, until the triggers have occurred one
 * after the other. The bytes after the last trigger in the same token must fit the grammar. With an `opening_token`,
 * the text before the first trigger is free only if the answer begins with this token, which is always allowed;
 * otherwise the first trigger counts as seen. */
typedef struct qn_grammar_start {
    qn_grammar_trigger_text triggers[QN_GRAMMAR_TRIGGERS];
    size_t n_triggers;      /* 0: the grammar begins at the first token */
    qn_token opening_token; /* < 0: none */
    bool repeats;           /* after an end token that is not in free text, the grammar begins again */
} qn_grammar_start;

/* qn_grammar_match_create - creates the match of a request.
 *
 *   vocab, grammar   must outlive it
 *   start            NULL: the grammar begins at the first token
 *   out              free it with qn_grammar_match_free */
qn_status qn_grammar_match_create(qn_grammar_vocab *vocab, const qn_grammar *grammar, const qn_grammar_start *start,
                                  qn_grammar_match **out);
void qn_grammar_match_free(qn_grammar_match *match);

/* qn_grammar_match_clone - copies a match. The copy has the same lifetimes. */
qn_status qn_grammar_match_clone(const qn_grammar_match *match, qn_grammar_match **out);

/* qn_grammar_match_bytes - the memory that the match takes now, in bytes, without the grammar. */
size_t qn_grammar_match_bytes(const qn_grammar_match *match);

/* qn_grammar_match_accepts - `accepts` of qn_request_params, with the match as `user`: whether a token may follow the
 * answer.
 *
 * Threads of steps call it, so it takes fewer steps than a mask may: it returns false if they are not enough, and
 * the mask decides. */
bool qn_grammar_match_accepts(void *match, const qn_token *answer, size_t n, qn_token token);

/* qn_grammar_match_mask - the tokens that may follow an answer, as qn_grammar_mask writes them.
 *
 * QN_ERR_UNSUPPORTED if the grammar is too ambiguous for a mask or a token, if the answer has a token that may not
 * follow, or if no token of the vocabulary may follow it; the message has the byte of the answer's text and the rule
 * (of schemas: the path). `allowed` is unspecified then. */
qn_status qn_grammar_match_mask(qn_grammar_match *match, const qn_token *answer, size_t n, uint32_t *allowed);

/* qn_grammar_match_check_first - whether a request with this sampling may set `accepts`, which checks the sampled token
 * before a mask is made. Otherwise it must have `mask` alone, which is exact for every filter.
 *
 * Distribution. Let p be the softmax of the logits and A the allowed tokens. Checking first gives p(t) for t in A,
 * plus (1 - p(A)) p(t) / p(A) after a rejection: p(t) / p(A), the distribution of masking before sampling. With
 * top-k, top-p or min-p it differs: the first draw is from tokens left by filters of all tokens, not of A. With
 * top-k 2 and probabilities 0.40 (rejected), 0.35, 0.25 checking first gives 0.78 and 0.22, masking first 0.58 and
 * 0.42. */
bool qn_grammar_match_check_first(const qn_sampling *sampling);

/* qn_grammar_match_quick_mask - the mask, if it takes at most a sixteenth of the steps that qn_grammar_match_mask
 * may take, about a millisecond. False: it takes more, or there is an error, which qn_grammar_match_mask returns. */
bool qn_grammar_match_quick_mask(qn_grammar_match *match, const qn_token *answer, size_t n, uint32_t *allowed);

/* qn_grammar_match_masks - the masks after each of the `n_more` tokens that come after an answer of n.
 *
 *   answer   [n + n_more]
 *   masks    [n_more, n_words] zeros
 *
 * Returns the number of masks that were made: together they take at most the steps that qn_grammar_match_quick_mask
 * allows. The match stays where it is. */
size_t qn_grammar_match_masks(const qn_grammar_match *match, const qn_token *answer, size_t n, size_t n_more,
                              size_t n_words, uint32_t *masks);

/* The hash of a grammar's state, keyed with a secret of the process. */
typedef struct qn_grammar_key {
    uint64_t words[2];
} qn_grammar_key;

/* qn_grammar_match_key - the key of the mask: matches of one vocabulary with equal keys have the same mask.
 *
 * Keys of two grammars differ, and compiled grammars are shared only within a scope (qn_grammar_create_in), so
 * scopes share no masks. The cache of masks uses the same keys. Returns false, without a key, in free text, where
 * the grammar alone does not decide, and where qn_grammar_match_mask fails. */
bool qn_grammar_match_key(qn_grammar_match *match, const qn_token *answer, size_t n, qn_grammar_key *key);

enum { QN_GRAMMAR_FORCED = 256 };

/* qn_grammar_match_forced - the text that must follow.
 *
 *   text     its bytes: the longest text with which every output of the grammar continues here, marks included, at most
 *            QN_GRAMMAR_FORCED bytes. It may end inside a character
 *   length   0 if several bytes may follow or the output may end, in free text, and where the mask fails */
qn_status qn_grammar_match_forced(qn_grammar_match *match, const qn_token *answer, size_t n,
                                  char text[QN_GRAMMAR_FORCED], size_t *length);

/* qn_grammar_match_forced_tokens - tokens that may be appended at once, without sampling.
 *
 *   tokenizer   that of the match's vocabulary
 *   sequence    [n] the tokens so far, prompt and answer; the last n_answer are the answer
 *   tokens      the tokens that follow; n_tokens 0: none
 *
 * Their bytes are a prefix of the forced text: decoding under the mask, token by token, writes the same bytes, whatever
 * the logits and the sampling. The tokens may differ from those: they are the canonical tokenisation of the text so far
 * (its last 256 bytes, after the last special token) with the forced text, which decoding may spell with other tokens
 * (`"` and `, "` for `", "`). Later samples follow the canonical tokens, so they may differ, too.
 *
 *   - Tokens of the sequence do not change. If a token of the canonical tokenisation crosses the end of the sequence,
 *   there are none.
 *   - Tokens at the end of the forced text are left to the model if another token could contain their bytes and some
 *   that follow: no token that the grammar allows begins within the returned tokens and ends after the forced text.
 *   - The mask allows each of the tokens. The match stays where it is.
 *
 * Takes 20 us, 150 us with the alternatives of 50 tools, and at most 1 us if nothing is forced. If the grammar is so
 * ambiguous that it would take much longer, fewer tokens are returned. */
qn_status qn_grammar_match_forced_tokens(qn_grammar_match *match, const qn_tokenizer *tokenizer,
                                         const qn_token *sequence, size_t n, size_t n_answer,
                                         qn_token tokens[QN_GRAMMAR_FORCED], size_t *n_tokens);

/* qn_grammar_match_is_finished - whether the output may end after the tokens read so far. */
bool qn_grammar_match_is_finished(const qn_grammar_match *match);

#endif
