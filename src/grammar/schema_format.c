/* Formats of strings as regular expressions. Their matches are valid by the RFCs that JSON Schema names. Where an
 * RFC allows more than programs write, the expression matches less. */
#include "grammar/schema.h"

#include <string.h>

/* Years 0001 to 9999. 29 February is in years divisible by 4, except those divisible by 100 but not by 400. */
#define YEAR "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define MONTH_DAY                                                                                                      \
    "(0[13578]-(0[1-9]|[12][0-9]|3[01])|1[02]-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|"  \
    "1[0-9]|2[0-8]))"
#define OF_4 "(0[48]|[2468][048]|[13579][26])"
#define DATE "(" YEAR "-" MONTH_DAY "|([0-9]{2}" OF_4 "|" OF_4 "00)-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"

#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define HEX "[0-9a-fA-F]{1,4}"
#define IPV6                                                                                                           \
    "((" HEX ":){7}" HEX "|(" HEX ":){1,7}:|(" HEX ":){1,6}:" HEX "|(" HEX ":){1,5}(:" HEX "){2}|(" HEX                \
    ":){1,4}(:" HEX "){3}|(" HEX ":){1,3}(:" HEX "){4}|(" HEX ":){1,2}(:" HEX "){5}|" HEX ":(:" HEX "){6}|:((:" HEX    \
    "){1,7}|:))"

/* At most 253 characters, labels of at most 63: up to three labels of 63 and one of 59, or eight of at most 30. */
#define LABEL(most) "[A-Za-z0-9]([A-Za-z0-9-]{0," most "}[A-Za-z0-9])?"
#define HOSTNAME "((" LABEL("61") "\\.){0,3}" LABEL("57") "|(" LABEL("28") "\\.){0,7}" LABEL("28") ")"

#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
#define USER "([A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9a-fA-F]{2})*@"
#define HOST "([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9a-fA-F]{2})*"
#define URI                                                                                                            \
    "[A-Za-z][A-Za-z0-9+.-]*:(//(" USER ")?" HOST "(:[0-9]{1,5})?(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR   \
    "+(/" PCHAR "*)*)(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"

#define SEGMENT "([A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+" /* a first one without a colon */
#define RELATIVE                                                                                                       \
    "(//(" USER ")?" HOST "(:[0-9]{1,5})?(/" PCHAR "*)*|/(" PCHAR "+(/" PCHAR "*)*)?|" SEGMENT "(/" PCHAR              \
    "*)*)?(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?"
#define POINTER "(/([^/~\\n\\r\\u2028\\u2029]|~[01])*)*"

#define CLOCK "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
#define DURATION "P([0-9]+W|([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)(" CLOCK ")?|" CLOCK ")"

/* Those of drafts 4 to 2020-12. The names of draft 3 are other names of these or were dropped. */
bool qn_schema_is_standard_format(const char *name)
{
    static const char *const others[] = { "regex", "uri-template", "idn-hostname" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i]))
            return true;
    return qn_schema_format(name) != NULL;
}

const char *qn_schema_format(const char *name)
{
    static const struct {
        const char *name, *regex;
    } formats[] = {
        { "date", "^" DATE "$" },
        { "time", "^" TIME "$" },
        { "date-time", "^" DATE "T" TIME "$" },
        { "duration", "^" DURATION "$" },
        { "uuid", "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$" },
        { "email",
          "^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-+[A-Za-z0-9]+)*(\\.[A-Za-z0-9]+(-+[A-Za-z0-9]+)*)+$" },
        { "hostname", "^" HOSTNAME "$" },
        { "ipv4", "^" BYTE "(\\." BYTE "){3}$" },
        { "ipv6", "^" IPV6 "$" },
        { "uri", "^" URI "$" },
        { "json-pointer", "^" POINTER "$" },
        { "relative-json-pointer", "^(0|[1-9][0-9]*)(#|" POINTER ")$" },
        /* Every URI is an IRI, and every such name, address and reference is one of the wider kind. */
        { "iri", "^" URI "$" },
        { "uri-reference", "^(" URI "|" RELATIVE ")$" },
        { "iri-reference", "^(" URI "|" RELATIVE ")$" },
        { "idn-email",
          "^[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-+[A-Za-z0-9]+)*(\\.[A-Za-z0-9]+(-+[A-Za-z0-9]+)*)+$" },
        /* Draft 3's names. */
        { "host-name", "^" HOSTNAME "$" },
        { "ip-address", "^" BYTE "(\\." BYTE "){3}$" },
    };
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(name, formats[i].name))
            return formats[i].regex;
    return NULL;
}
