/* A state machine over the bytes of a JSON value, with one bit for each open array or object. */
#include "text/json_scan.h"

enum state {
    VALUE, /* the state of a zeroed scan */
    FIRST_ELEMENT,
    FIRST_KEY,
    KEY,
    COLON,
    AFTER, /* a value inside an array or object */
    STRING,
    ESCAPE,
    HEX,
    LITERAL,
    MINUS,
    ZERO,
    INTEGER,
    POINT,
    FRACTION,
    EXPONENT,
    EXPONENT_SIGN,
    EXPONENT_DIGITS
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool in_object(const qn_json_scan *scan)
{
    const unsigned level = scan->depth - 1u;
    return scan->objects[level / 64] >> (level % 64) & 1;
}

static qn_json_step next(qn_json_scan *scan, enum state state)
{
    scan->state = (uint8_t)state;
    return QN_JSON_MORE;
}

static qn_json_step value_ended(qn_json_scan *scan)
{
    return scan->depth ? next(scan, AFTER) : QN_JSON_END;
}

static qn_json_step open_level(qn_json_scan *scan, bool object)
{
    if (scan->depth == QN_JSON_MAX_DEPTH)
        return QN_JSON_ERROR;
    const uint64_t bit = UINT64_C(1) << (scan->depth % 64);
    if (object)
        scan->objects[scan->depth / 64] |= bit;
    else
        scan->objects[scan->depth / 64] &= ~bit;
    scan->depth++;
    return next(scan, object ? FIRST_KEY : FIRST_ELEMENT);
}

static qn_json_step close_level(qn_json_scan *scan, bool object)
{
    if (in_object(scan) != object)
        return QN_JSON_ERROR;
    scan->depth--;
    return value_ended(scan);
}

static qn_json_step begin_string(qn_json_scan *scan, bool is_key)
{
    scan->is_key = is_key;
    return next(scan, STRING);
}

static qn_json_step begin_literal(qn_json_scan *scan, const char *literal)
{
    scan->literal = literal;
    scan->n_literal = 1;
    return next(scan, LITERAL);
}

static qn_json_step begin_value(qn_json_scan *scan, char c)
{
    switch (c) {
    case '{': return open_level(scan, true);
    case '[': return open_level(scan, false);
    case '"': return begin_string(scan, false);
    case 't': return begin_literal(scan, "true");
    case 'f': return begin_literal(scan, "false");
    case 'n': return begin_literal(scan, "null");
    case '-': return next(scan, MINUS);
    case '0': return next(scan, ZERO);
    default: return is_digit(c) ? next(scan, INTEGER) : QN_JSON_ERROR;
    }
}

static qn_json_step in_string(qn_json_scan *scan, char c)
{
    if (scan->needs_pair && c != '\\')
        return QN_JSON_ERROR;
    if (c == '\\')
        return next(scan, ESCAPE);
    if (c == '"')
        return scan->is_key ? next(scan, COLON) : value_ended(scan);
    return (unsigned char)c < 0x20 ? QN_JSON_ERROR : QN_JSON_MORE;
}

static qn_json_step in_escape(qn_json_scan *scan, char c)
{
    if (c == 'u') {
        scan->n_hex = 0;
        scan->unit = 0;
        return next(scan, HEX);
    }
    if (scan->needs_pair)
        return QN_JSON_ERROR;
    switch (c) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return next(scan, STRING);
    default: return QN_JSON_ERROR;
    }
}

static qn_json_step in_hex(qn_json_scan *scan, char c)
{
    const char lower = (char)(c | 0x20);
    if (!is_digit(c) && !(lower >= 'a' && lower <= 'f'))
        return QN_JSON_ERROR;
    scan->unit = (uint16_t)(scan->unit << 4 | (is_digit(c) ? c - '0' : lower - 'a' + 10));
    if (++scan->n_hex < 4)
        return QN_JSON_MORE;
    const bool high = scan->unit >= 0xd800 && scan->unit < 0xdc00, low = scan->unit >= 0xdc00 && scan->unit < 0xe000;
    if (scan->needs_pair != low)
        return QN_JSON_ERROR;
    scan->needs_pair = high;
    return next(scan, STRING);
}

/* Handles the byte after a number. */
static qn_json_step after_number(qn_json_scan *scan, char c)
{
    if (!scan->depth)
        return QN_JSON_END_BEFORE;
    scan->state = AFTER;
    return qn_json_scan_feed(scan, c);
}

static qn_json_step in_number(qn_json_scan *scan, char c)
{
    const bool exponent = c == 'e' || c == 'E';
    switch ((enum state)scan->state) {
    case MINUS: return is_digit(c) ? next(scan, c == '0' ? ZERO : INTEGER) : QN_JSON_ERROR;
    case ZERO:
    case INTEGER:
        if (is_digit(c))
            return scan->state == ZERO ? QN_JSON_ERROR : QN_JSON_MORE;
        return c == '.' ? next(scan, POINT) : exponent ? next(scan, EXPONENT) : after_number(scan, c);
    case POINT: return is_digit(c) ? next(scan, FRACTION) : QN_JSON_ERROR;
    case FRACTION: return is_digit(c) ? QN_JSON_MORE : exponent ? next(scan, EXPONENT) : after_number(scan, c);
    case EXPONENT:
        if (c == '+' || c == '-')
            return next(scan, EXPONENT_SIGN);
        return is_digit(c) ? next(scan, EXPONENT_DIGITS) : QN_JSON_ERROR;
    case EXPONENT_SIGN: return is_digit(c) ? next(scan, EXPONENT_DIGITS) : QN_JSON_ERROR;
    default: return is_digit(c) ? QN_JSON_MORE : after_number(scan, c);
    }
}

qn_json_step qn_json_scan_feed(qn_json_scan *scan, char c)
{
    switch ((enum state)scan->state) {
    case STRING: return in_string(scan, c);
    case ESCAPE: return in_escape(scan, c);
    case HEX: return in_hex(scan, c);
    case LITERAL:
        if (c != scan->literal[scan->n_literal])
            return QN_JSON_ERROR;
        return scan->literal[++scan->n_literal] ? QN_JSON_MORE : value_ended(scan);
    case VALUE:
    case FIRST_ELEMENT:
        if (qn_json_is_space(c))
            return QN_JSON_MORE;
        return c == ']' && scan->state == FIRST_ELEMENT ? close_level(scan, false) : begin_value(scan, c);
    case FIRST_KEY:
    case KEY:
        if (qn_json_is_space(c))
            return QN_JSON_MORE;
        if (c == '"')
            return begin_string(scan, true);
        return c == '}' && scan->state == FIRST_KEY ? close_level(scan, true) : QN_JSON_ERROR;
    case COLON:
        if (qn_json_is_space(c))
            return QN_JSON_MORE;
        return c == ':' ? next(scan, VALUE) : QN_JSON_ERROR;
    case AFTER:
        if (qn_json_is_space(c))
            return QN_JSON_MORE;
        if (c == ',')
            return next(scan, in_object(scan) ? KEY : VALUE);
        return c == '}' || c == ']' ? close_level(scan, c == '}') : QN_JSON_ERROR;
    default: return in_number(scan, c);
    }
}

bool qn_json_scan_in_string(const qn_json_scan *scan)
{
    return scan->depth > 0 && (scan->state == STRING || scan->state == ESCAPE || scan->state == HEX);
}

bool qn_json_is_value(const char *text, size_t length)
{
    qn_json_scan scan = { 0 };
    for (size_t i = 0; i < length; i++) {
        const qn_json_step step = qn_json_scan_feed(&scan, text[i]);
        if (step != QN_JSON_MORE)
            return step == QN_JSON_END && i + 1 == length;
    }
    return qn_json_scan_feed(&scan, ' ') == QN_JSON_END_BEFORE;
}
