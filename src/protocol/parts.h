/* Parts of a content that are not of the type "text", as text: documents of plain text and search results; and, in
 * results of tools, a line in place of what a model without vision cannot read. Clients send a result again with each
 * turn, so refusing it would end the conversation. */
#ifndef QN_PROTOCOL_PARTS_H
#define QN_PROTOCOL_PARTS_H

#include "protocol/json_body.h"

/* qn_part_text - append the text of a part.
 *
 *   in_result   the part is of a tool's result: a part that is no text is replaced by a line, and counted in
 *               reading->n_omitted
 *
 * False, with nothing appended: the part has no text that is known here. */
bool qn_part_text(const json_t *part, bool in_result, qn_reading *reading, qn_bytes *text);

#endif
