/* The grammar of the output, from the options of run and bench. */
#ifndef QN_CLI_GRAMMAR_H
#define QN_CLI_GRAMMAR_H

#include "cli/args.h"
#include "quern/grammar.h"

/* qn_check_grammar - check that the options go together. Returns QN_EXIT_DONE, or QN_EXIT_USAGE after an error line. */
int qn_check_grammar(const qn_args *args);

/* qn_load_grammar - compile the grammar that the options name; *out NULL: none. The caller frees it with
 * qn_grammar_free. Returns as qn_load_model; the error line names the file or the option. */
int qn_load_grammar(const qn_args *args, qn_model *model, qn_grammar **out);

/* qn_find_jump_forward - returns the value of --jump-forward. */
qn_jump_forward qn_find_jump_forward(const qn_args *args);

#endif
