/* The level of reasoning of conversations that name none. */
#ifndef QN_CLI_EFFORT_H
#define QN_CLI_EFFORT_H

#include "cli/args.h"
#include "protocol/protocol.h"
#include "quern/quern.h"

/* qn_middle_effort - the middle one of the levels above "none" that a template knows, "medium" if it is one of them;
 * NULL if it knows fewer than two. The defaults of templates are chosen for large models: with the highest level a
 * small one may reason until its tokens are used up. */
const char *qn_middle_effort(const qn_chat_format *format);

/* qn_choose_effort - the level for conversations that name none: --reasoning-effort, else the middle one; NULL: the
 * template's own. */
const char *qn_choose_effort(const qn_args *args, const qn_model *model);

/* qn_choose_thinking - what --reasoning says of conversations that say nothing of it. */
qn_thinking qn_choose_thinking(const qn_args *args);

#endif
