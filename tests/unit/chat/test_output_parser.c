/* Reasoning, content and tool calls parsed back from output: golden outputs of every form, cut at all positions into
 * bytes and tokens, and cut off at all positions. */

#include "helper_output.h"
#include "helper_random.h"

enum { THINKS = 1, BYTES_ONLY = 2, TOKENS_ONLY = 4 };

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"}, \"metric\": {\"type\": "
    "\"boolean\"},\"limit\": {\"type\": \"number\"}, \"where\": {\"$ref\": \"#/$defs/place~1or\"}, \"loop\": "
    "{\"$ref\": \"#/$defs/loop\"},\"either\": {\"type\": [\"integer\", \"string\"]}, \"first\": {\"type\": "
    "[\"string\", \"integer\"]},\"maybe\": {\"anyOf\": [{\"type\": \"null\"}, {\"$ref\": \"#/$defs/place~1or\"}, "
    "{\"type\": \"string\"}]},\"unit\": {\"enum\": [\"c\", \"f\"]}, \"level\": {\"enum\": [1, 2, \"off\"]}, "
    "\"fixed\": {\"const\": true},\"any\": {}, \"size\": {\"enum\": [\"1\"]}, \"word\": {\"const\": \"true\"}, "
    "\"list\": {\"items\": {}},\"note\": {\"type\": [\"string\", \"null\"]}, \"memo\": {\"anyOf\": [{\"type\": "
    "\"string\"}, {\"type\": \"null\"}]},\"hint\": {\"type\": \"string\", \"nullable\": true}},\"allOf\": [{\"$ref\": "
    "\"#/$defs/more\"}, {\"anyOf\": [{\"properties\": {\"one\": {\"type\": \"boolean\"}}}]}],\"$defs\": {\"more\": "
    "{\"properties\": {\"extra\": {\"type\": \"integer\"}}}, \"place/or\": {\"type\": \"object\"}, \"loop\": "
    "{\"$ref\": \"#/$defs/loop\"}}}}},{\"name\": \"union\", \"input_schema\": {\"properties\": {\"many\": {\"anyOf\": "
    "[{\"type\": \"string\"}, {\"type\": \"array\"}]},\"count\": {\"oneOf\": [{\"type\": \"string\"}, {\"type\": "
    "\"integer\"}]}, \"flag\": {\"anyOf\": [{\"type\": \"string\", \"minLength\": 2},{\"type\": \"boolean\"}]}, "
    "\"mode\": {\"anyOf\": [{\"const\": \"auto\"}, {\"type\": \"integer\"}]}, \"code\": {\"pattern\": \"^[0-9]+$\"}, "
    "\"rows\": {\"minItems\": 1}}, \"enum\": [{\"zip\": \"01\"}, {\"zip\": \"2\", \"n\": 3}], \"if\": {\"required\": "
    "[\"mode\"]},\"then\": {\"properties\": {\"both\": {\"type\": \"string\"}}}, \"else\": {\"properties\": "
    "{\"both\": {\"type\": \"integer\"}}}}},{\"name\": \"now\", \"input_schema\": {\"type\": \"object\", "
    "\"additionalProperties\": {\"type\": \"string\"}}}]";

static const struct golden {
    qn_output_form form;
    int flags;
    const char *output, *log;
} goldens[] = {
    { QN_OUTPUT_PLAIN, 0, "", "" },
    { QN_OUTPUT_PLAIN, 0, "Hi \xc3\xa9\n\n", "C{Hi \xc3\xa9\n\n}" },
    { QN_OUTPUT_PLAIN, 0, "a\xff\xe2\x82", "C{a\xef\xbf\xbd\xef\xbf\xbd}" },
    { QN_OUTPUT_PLAIN, 0, "<think>\nfirst\n\nsecond\n</think>\n\n  Yes.\n", "R{first\n\nsecond}C{  Yes.\n}" },
    { QN_OUTPUT_PLAIN, THINKS, "a <thin </thin\n\n</think>\n\nYes", "R{a <thin </thin}C{Yes}" },
    { QN_OUTPUT_PLAIN, THINKS, "never ended </thi", "R{never ended </thi}" },
    { QN_OUTPUT_PLAIN, THINKS, "<think>\nonce more\n</think>", "R{once more}" },
    { QN_OUTPUT_PLAIN, THINKS, "\n</think>\n\n", "" },
    { QN_OUTPUT_PLAIN, BYTES_ONLY, "say <think> and </think>", "C{say <think> and </think>}" },
    { QN_OUTPUT_PLAIN, TOKENS_ONLY, "say <think> and </think> so", "C{say}R{ and}C{ so}" },
    { QN_OUTPUT_PLAIN, 0, "<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
      "C{<tool_call>\n{\"name\": \"now\"}\n</tool_call>}" },

    { QN_OUTPUT_JSON, 0,
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\"}}\n</tool_call>",
      "[get_weather|{\"city\": \"K\xc3\xb6ln\"}]=" },
    { QN_OUTPUT_JSON, 0,
      "Two:\n<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": [1, {\"y\": null}, "
      "\"}\\\"{\"]}}\n</tool_call>\n<tool_call>\n"
      "{\"name\": \"b\", \"arguments\": {}}\n</tool_call>",
      "C{Two:}[a|{\"x\": [1, {\"y\": null}, \"}\\\"{\"]}]=[b|{}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"arguments\": {\"a\": 1e5}, \"id\": 7, \"name\": \"f\"}</tool_call>\nDone.",
      "[f|{\"a\": 1e5}]=C{Done.}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\"}</tool_call>", "[f|{}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "[f|{}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
      "[f|{\"a\": 1}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\\u00e9\", \"parameters\": {\"a\": \"\\ud83d\\ude00\"}}</tool_call>",
      "[f\xc3\xa9|{\"a\": \"\\ud83d\\ude00\"}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"html\": \"</tool_call><think>\"}}</tool_call>",
      "[f|{\"html\": \"</tool_call><think>\"}]=" },
    /* No close, no last brace, a brace too many, two in one block, no block. */
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "[f|{\"a\": 1}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>", "[f|{\"a\": 1}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {}}}\n</tool_call>",
      "[f|{}]=C{}\n</tool_call>}" },
    { QN_OUTPUT_JSON, 0,
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n",
      "[f|{}]=[g|{}]=" },
    { QN_OUTPUT_JSON, 0, "{\"name\": \"now\", \"arguments\": {}}", "C{{\"name\": \"now\", \"arguments\": {}}}" },
    /* What does not parse is content. */
    { QN_OUTPUT_JSON, 0, "<tool_call>\nnow()\n</tool_call>", "C{<tool_call>\nnow()\n</tool_call>}" },
    { QN_OUTPUT_JSON, 0,
      " <tool_call>{\"arguments\": {}}</tool_call> <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
      "C{ <tool_call>{\"arguments\": {}}</tool_call>}[now|{}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
      "C{<tool_call>{\"name\": \"f\", \"arguments\": [1]}}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\n\"}}</tool_call>",
      "[f|{\"a\": \"]!C{\n\"}}</tool_call>}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\ud83d\"}}",
      "[f|{\"a\": \"\\ud83d]!C{\"}}}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\udc00\"}}",
      "[f|{\"a\": \"\\udc0]!C{0\"}}}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\ud83d\\n\"}}",
      "[f|{\"a\": \"\\ud83d\\]!C{n\"}}}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}", "[f|{\"a\": 0]!C{1}}}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1,}}", "[f|{\"a\": 1,]!C{}}}" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> \n ", "[f|{}]=" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f\", \"argu", "[f|]~" },
    { QN_OUTPUT_JSON, 0, "<tool_call>{\"name\": \"f", "C{<tool_call>{\"name\": \"f}" },
    { QN_OUTPUT_JSON, 0, "ok\n <tool_ca", "C{ok\n <tool_ca}" },
    /* Reasoning. */
    { QN_OUTPUT_JSON, 0,
      "<think>\nCall it.\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
      "R{Call it.}[now|{}]=" },
    { QN_OUTPUT_JSON, THINKS,
      "Call it.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n</think>\nYes",
      "R{Call it.}[now|{}]=C{Yes}" },
    { QN_OUTPUT_JSON, THINKS | BYTES_ONLY,
      "In <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>\n</think>\n\nYes",
      "R{In <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>}C{Yes}" },
    { QN_OUTPUT_JSON, THINKS, "The tags <tool_call> and </tool_call>:\n<tool_call>\n are for tools\n</think>\n\nYes",
      "R{The tags <tool_call> and </tool_call>:\n<tool_call>\n are for tools}C{Yes}" },
    { QN_OUTPUT_JSON, THINKS, "Like\n<tool_call>{\"name\": \"example\", \"arguments\": {}}</tool_call>\n</think>Yes",
      "R{Like\n<tool_call>{\"name\": \"example\", \"arguments\": {}}</tool_call>}C{Yes}" },
    { QN_OUTPUT_JSON, BYTES_ONLY, "Write <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
      "C{Write <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>}" },
    { QN_OUTPUT_JSON, 0, "I do <tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", "C{I do}[now|{}]=" },

    { QN_OUTPUT_XML, THINKS,
      "Look.\n</think>\n\nSure.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nK\xc3\xb6ln\n\"am\" "
      "\\Rhein\n\n"
      "</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n</function>\n</"
      "tool_call>",
      "R{Look.}C{Sure.}[get_weather|{\"city\": \"K\xc3\xb6ln\\n\\\"am\\\" \\\\Rhein\\n\", \"days\": 3, \"metric\": "
      "true}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
      "[now|{}]=[f|{}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=where>\n{\"x\": "
      "[1]}\n</parameter>\n"
      "<parameter=maybe>\nNone\n</parameter>\n<parameter=either>\nx1\n</parameter>\n<parameter=loop>\n[]\n</"
      "parameter>\n"
      "</function>\n</tool_call>",
      "[get_weather|{\"city\": \"12\", \"where\": {\"x\": [1]}, \"maybe\": null, \"either\": \"x1\", \"loop\": []}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=either>\n 5 \n</parameter>\n<parameter=first>\n5\n</parameter>\n"
      "<parameter=maybe>\n{}\n</parameter>\n<parameter=days>\n1.5\n</parameter>\n<parameter=limit>\n1.5\n</parameter>\n"
      "<parameter=unit>\nc\n</parameter>\n<parameter=level>\n2\n</parameter>\n<parameter=level>\noff\n</parameter>\n"
      "<parameter=fixed>\nFalse\n</parameter>\n<parameter=any>\n\"q\"\n</parameter>\n\n<parameter=size>\n1\n</"
      "parameter> "
      "<parameter=word>\ntrue\n</parameter>\n<parameter=list>\n[1]\n</parameter>\n"
      "</function>\n</tool_call>",
      "[get_weather|{\"either\": 5, \"first\": \"5\", \"maybe\": {}, \"days\": \"1.5\", \"limit\": 1.5, \"unit\": "
      "\"c\", \"level\": 2, \"level\": \"off\", \"fixed\": false, \"any\": \"\\\"q\\\"\", \"size\": \"1\", \"word\": "
      "\"true\", \"list\": [1]}]=" },
    /* A string or null, integers, and properties of parts of the schema. */
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=note>\nnull\n</parameter>\n<parameter=memo>\nNone\n</"
      "parameter>\n"
      "<parameter=hint>\nnull\n</parameter>\n<parameter=note>\nnul\n</parameter>\n<parameter=memo>\nnull.\n</"
      "parameter>\n"
      "<parameter=hint>\nNo "
      "\"x\"\n</parameter>\n<parameter=note>\n\n</parameter>\n<parameter=city>\nnull\n</parameter>\n"
      "</function>\n</tool_call>",
      "[get_weather|{\"note\": null, \"memo\": null, \"hint\": null, \"note\": \"nul\", \"memo\": \"null.\", "
      "\"hint\": \"No \\\"x\\\"\", \"note\": \"\", \"city\": \"null\"}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=days>\n1.0\n</parameter>\n<parameter=days>\n-2.00\n</"
      "parameter>\n"
      "<parameter=days>\n1e3\n</parameter>\n<parameter=extra>\n7\n</parameter>\n<parameter=one>\nTrue\n</parameter>\n"
      "<parameter=days>\n1.5e0\n</parameter>\n</function>\n</tool_call>",
      "[get_weather|{\"days\": 1, \"days\": -2, \"days\": 1e3, \"extra\": 7, \"one\": true, \"days\": \"1.5e0\"}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n\n</parameter>\n</function>\n</"
      "tool_call>",
      "[now|{\"a\": \"1\", \"b\": \"\"}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call><function=f><parameter=a>x</parameter><parameter=b></parameter></function></tool_call>",
      "[f|{\"a\": \"x\", \"b\": \"\"}]=" },
    /* Lists and dictionaries as Python prints them. */
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=list>\n['a', \"it's\", 'say \"x\"', 'don\\'t', 'a\\n', True, None, "
      "(1, 2.5,), 'True', ]\n</parameter>\n<parameter=where>\n{'x': [False], 'y': {}, 'K\xc3\xb6ln': -1}\n</parameter>\n"
      "<parameter=list>\n['a', x]\n</parameter>\n<parameter=list>\n['a\n</parameter>\n<parameter=either>\n['a']\n"
      "</parameter>\n</function>\n</tool_call>",
      "[get_weather|{\"list\": [\"a\", \"it's\", \"say \\\"x\\\"\", \"don't\", \"a\\n\", true, null, [1, 2.5], \"True\" ], "
      "\"where\": {\"x\": [false], \"y\": {}, \"K\xc3\xb6ln\": -1}, \"list\": \"['a', x]\", \"list\": \"['a\", "
      "\"either\": \"['a']\"}]=" },
    /* Tags inside values, twice, or missing. */
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=f>\n<parameter=a>\n<b>\n</parameter>\n</b>\n</tool_call>\n</function> "
      "</parameter>\n</function>\n</tool_call>",
      "[f|{\"a\": \"<b>\\n</parameter>\\n</b>\\n</tool_call>\\n</function> \"}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</parameter>\n</function>\n</tool_call>",
      "[f|{\"a\": \"x\"}]=" },
    { QN_OUTPUT_XML, 0, "<function=now>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
      "[now|{\"a\": \"x\"}]=" },
    { QN_OUTPUT_XML, 0, "Go:\n<function=now>\n</function>\nrest", "C{Go:}[now|{}]=C{rest}" },
    { QN_OUTPUT_XML, 0, "Go:\n<function=f>\n</function>", "C{Go:\n<function=f>\n</function>}" },
    { QN_OUTPUT_XML, 0, "Go: <function=now>\n</function>", "C{Go: <function=now>\n</function>}" },
    { QN_OUTPUT_XML, THINKS, "Go:\n<function=now>\n</function>", "R{Go:\n<function=now>\n</function>}" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</tool_call>",
      "[f|{\"a\": \"x\"}]=" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>\n</tool_call>",
      "[f|{\"a\": \"x\"}]=" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>",
      "[f|{}]=[g|{}]=" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n<function=f>\nx<parameter=a>\n</tool_call>",
      "[f|]!C{x<parameter=a>\n</tool_call>}" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<param>y", "[f|]~" },
    /* The tag of another parameter of the tool ends a value; of none that it has, of one that came, and of no tool's it
     * is text. */
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n<parameter=days>\n3\n<parameter=extra>\n4\n</"
      "parameter>\n"
      "<parameter=unit>c<parameter=metric>True</parameter>\n</function>\n</tool_call>",
      "[get_weather|{\"city\": \"x\", \"days\": 3, \"extra\": 4, \"unit\": \"c\", \"metric\": true}]=" },
    { QN_OUTPUT_XML, BYTES_ONLY,
      "<tool_call>\n<function=get_weather>\n<parameter=where>\n{\"x\": "
      "1}\n<parameter=city>\nx\n</function>\n</tool_call>",
      "[get_weather|{\"where\": {\"x\": 1}, \"city\": \"x\"}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=city>\nsay "
      "<parameter=unknown>\n<parameter=city>\n<parameter=day\n"
      "<parameter=dayss>\n<parameter=>\n</parameter>\n</function>\n</tool_call>",
      "[get_weather|{\"city\": \"say "
      "<parameter=unknown>\\n<parameter=city>\\n<parameter=day\\n<parameter=dayss>\\n<parameter=>\"}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=get_weather>\n<parameter=days>\n3\n</parameter>\n<parameter=city>\n<parameter=days>\n</"
      "parameter>\n"
      "</function>\n</tool_call>",
      "[get_weather|{\"days\": 3, \"city\": \"<parameter=days>\"}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=f>\n<parameter=a>\nx\n<parameter=b>\ny\n</parameter>\n</function>\n</tool_call>",
      "[f|{\"a\": \"x\\n<parameter=b>\\ny\"}]=" },
    /* Strings of JSON have no tags, but behind a line end. */
    { QN_OUTPUT_XML, BYTES_ONLY,
      "<tool_call>\n<function=get_weather>\n<parameter=where>\n{\"x\": \"<parameter=city> "
      "</parameter></function></tool_call> "
      "\\\"\"}\n"
      "</parameter>\n<parameter=list>\n[\"a\n</parameter>\n</function>\n</tool_call>",
      "[get_weather|{\"where\": {\"x\": \"<parameter=city> </parameter></function></tool_call> \\\"\"}, \"list\": "
      "\"[\\\"a\"}]=" },
    /* Values of a union: what they are read as first. */
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=union>\n<parameter=code>\n7\n</parameter>\n<parameter=rows>\n[8]\n</parameter>\n"
      "<parameter=zip>\n2\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
      "[union|{\"code\": \"7\", \"rows\": [8], \"zip\": \"2\", \"n\": 3}]=" },
    { QN_OUTPUT_XML, 0,
      "<tool_call>\n<function=union>\n<parameter=many>\n[\"a\"]\n</parameter>\n<parameter=count>\n7\n</"
      "parameter>\n<parameter=flag>\n"
      " true "
      "\n</parameter>\n<parameter=mode>\n5\n</parameter>\n<parameter=both>\n5\n</parameter>\n</function>\n</"
      "tool_call>\n"
      "<tool_call>\n<function=union>\n<parameter=many>\n[a\n</parameter>\n<parameter=count>\n7x\n</"
      "parameter>\n<parameter=flag>\ntrue!"
      "\n</parameter>\n<parameter=mode>\nauto\n</parameter>\n<parameter=both>\nx\n</parameter>\n</function>\n</"
      "tool_call>",
      "[union|{\"many\": [\"a\"], \"count\": 7, \"flag\": true, \"mode\": 5, \"both\": 5}]="
      "[union|{\"many\": \"[a\", \"count\": \"7x\", \"flag\": \"true!\", \"mode\": \"auto\", \"both\": \"x\"}]=" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n<function=now>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\ny",
      "[now|{\"a\": \"x\", \"b\": \"y]~" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
      "C{<tool_call>\n{\"name\": \"now\"}\n</tool_call>}" },
    { QN_OUTPUT_XML, 0, "<tool_call>\n<function=f", "C{<tool_call>\n<function=f}" },
    { QN_OUTPUT_XML, BYTES_ONLY,
      "a\x01<tool_call><function=f><parameter=\"k>\n\x01\t\xff\n</parameter>\n</function>\n</tool_call>",
      "C{a\x01<tool_call><function=f><parameter=\"k>\n\x01\t\xef\xbf\xbd\n</parameter>\n</function>\n</tool_call>}" },
    { QN_OUTPUT_XML, 0, "<tool_call><function=f><parameter=\"k>\n\x01\t\xff\n</parameter>\n</function>\n</tool_call>",
      "[f|{\"\\\"k\": \"\\u0001\\t\xef\xbf\xbd\"}]=" },

    { QN_OUTPUT_LLAMA3, 0, "{\"name\": \"now\", \"parameters\": {\"a\": \"b\"}}", "[now|{\"a\": \"b\"}]=" },
    { QN_OUTPUT_LLAMA3, 0, "\n<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "[f|{}]=" },
    { QN_OUTPUT_LLAMA3, 0, "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {}}\n",
      "[now|{}]=[f|{}]=" },
    { QN_OUTPUT_LLAMA3, 0, "{\"name\": \"f\", \"parameters\": {}}", "C{{\"name\": \"f\", \"parameters\": {}}}" },
    { QN_OUTPUT_LLAMA3, 0, "{\"name\": \"now\", \"age\": 3}", "C{{\"name\": \"now\", \"age\": 3}}" },
    { QN_OUTPUT_LLAMA3, 0, "{\"name\": \"now\"}", "C{{\"name\": \"now\"}}" },
    { QN_OUTPUT_LLAMA3, 0, "As {\"name\": \"now\", \"parameters\": {}}",
      "C{As {\"name\": \"now\", \"parameters\": {}}}" },
    { QN_OUTPUT_LLAMA3, 0, "<|python_tag|>print(1)", "C{<|python_tag|>print(1)}" },
    { QN_OUTPUT_LLAMA3, 0, "{\"name\": \"now\", \"parameters\": {\"a\": [tru", "[now|{\"a\": [tru]~" },
    { QN_OUTPUT_LLAMA3, 0, "{\"name\": \"now\", \"parameters\": {\"a\": [trx", "[now|{\"a\": [tr]!C{x}" },
};
enum { N_GOLDENS = COUNT(goldens) };

static qn_output_params params_of(const struct golden *golden, bool by_token, struct transcript *transcript)
{
    qn_output_params params;
    qn_output_params_init(&params, golden->form);
    params.starts_in_reasoning = golden->flags & THINKS;
    params.tools = keep_tools(tools_text, params.form);
    params.on_event = transcript_event;
    params.user = transcript;
    if (by_token) {
        params.think_open.token = 10;
        params.think_close.token = 11;
        params.call_open.token = 12;
        params.call_close.token = 13;
    }
    return params;
}

/* Parses output[0 .. n) in pieces: of `first` bytes and then `step`, of random sizes if step is 0. */
static void parse(const struct golden *golden, bool by_token, const char *output, size_t n, size_t first, size_t step,
                  struct transcript *transcript)
{
    *transcript = (struct transcript){ .last_kind = -1 };
    const qn_output_params params = params_of(golden, by_token, transcript);
    qn_output_parser *parser;
    assert_ok(qn_output_parser_create(&params, &parser));
    for (size_t at = 0, end; at < n; at = end) {
        int32_t token;
        const size_t size = !at && first ? first : step ? step : 1 + random_u32() % 9;
        end = next_piece(&params, output, at, n, size, &token);
        assert_ok(qn_output_feed(parser, token >= 0 ? token : by_token ? 100 : -1, output + at, end - at));
    }
    assert_ok(qn_output_finish(parser));
    transcript_close(transcript);
    text_add(&transcript->log, "", 0);
    assert_int_equal(qn_output_n_calls(parser), transcript->n_calls);
    qn_output_parser_free(parser);
    if (transcript->problem)
        fail_msg("%s: %s", output, transcript->problem);
    assert_true(transcript_accounts(transcript, &params, output, n));
}

static void expect(const struct golden *golden, bool by_token, size_t first, size_t step)
{
    struct transcript transcript;
    parse(golden, by_token, golden->output, strlen(golden->output), first, step, &transcript);
    assert_string_equal(transcript.log.data, golden->log);
    transcript_free(&transcript);
}

TEST(test_goldens)
{
    for (size_t i = 0; i < N_GOLDENS; i++) {
        const struct golden *golden = &goldens[i];
        const size_t n = strlen(golden->output);
        for (int by_token = 0; by_token < 2; by_token++) {
            if (golden->flags & (by_token ? BYTES_ONLY : TOKENS_ONLY))
                continue;
            label("golden %zu, %s: %s", i, by_token ? "tokens" : "bytes", golden->output);
            expect(golden, by_token, n, n);
            expect(golden, by_token, 1, 1);
            for (size_t first = 1; first < n; first++)
                expect(golden, by_token, first, n);
            for (int round = 0; round < 50; round++)
                expect(golden, by_token, 0, 0);
        }
    }
}

/* Text of the log from '[' number `call` to its ']' and status; the goldens have no other ']' before a status. */
static const char *call_in_log(const char *log, const char *name, size_t *length)
{
    const char *begin = strstr(log, name);
    if (!begin)
        return NULL;
    const char *end = begin;
    while (*end && !(end[0] == ']' && strchr("=~!", end[1]) && end[1]))
        end++;
    *length = (size_t)(end - begin);
    return begin;
}

/* Output that ends early: the arguments of the first call are a prefix of those of the whole output. */
TEST(test_cut_off)
{
    for (size_t i = 0; i < N_GOLDENS; i++) {
        const struct golden *golden = &goldens[i];
        const size_t n = strlen(golden->output);
        const char *call = strchr(golden->log, '[');
        if (!call || !strchr(call, '|') || golden->flags & (BYTES_ONLY | TOKENS_ONLY))
            continue;
        char name[64];
        size_t whole = 0, part = 0, n_seen = 0;
        const size_t n_name = (size_t)(strchr(call, '|') - call) + 1;
        memcpy(name, call, n_name);
        name[n_name] = '\0';
        assert_non_null(call_in_log(golden->log, name, &whole));
        for (size_t cut = 0; cut <= n; cut++)
            for (int by_token = 0; by_token < 2; by_token++) {
                struct transcript transcript;
                label("golden %zu cut at %zu: %s", i, cut, golden->output);
                parse(golden, by_token, golden->output, cut, 0, 0, &transcript);
                const char *found = call_in_log(transcript.log.data, name, &part);
                assert_true(!found || (part <= whole && !memcmp(found, call, part)));
                assert_true(found || !n_seen || by_token);
                n_seen += found != NULL && !by_token;
                transcript_free(&transcript);
            }
        assert_true(n_seen > 0);
    }
}

/* What comes of output that something else than the model ends: its log without what closes the last entry is the
 * beginning of the whole output's. A delimiter's token comes whole. */
static void expect_cut(const struct golden *golden, bool by_token, size_t cut)
{
    struct transcript transcript = { .last_kind = -1 };
    const qn_output_params params = params_of(golden, by_token, &transcript);
    const char *output = golden->output;
    qn_output_parser *parser;
    assert_ok(qn_output_parser_create(&params, &parser));
    for (size_t at = 0, end; at < cut; at = end) {
        int32_t token;
        end = next_piece(&params, output, at, strlen(output), 1, &token);
        assert_ok(qn_output_feed(parser, token >= 0 ? token : by_token ? 100 : -1, output + at, end - at));
    }
    assert_ok(qn_output_cut(parser));
    transcript_close(&transcript);
    text_add(&transcript.log, "", 0);
    assert_null(transcript.problem);
    const char *log = transcript.log.data;
    const size_t n = transcript.log.n, n_close = !n ? 0 : log[n - 1] == '}' ? 1 : 2;
    if (strncmp(log, golden->log, n - n_close) != 0)
        fail_msg("%s", log);
    transcript_free(&transcript);
    qn_output_parser_free(parser);
}

TEST(test_cuts)
{
    for (size_t i = 0; i < N_GOLDENS; i++) {
        const struct golden *golden = &goldens[i];
        for (int by_token = 0; by_token < 2; by_token++)
            for (size_t cut = 0; cut <= strlen(golden->output); cut++) {
                label("golden %zu, %s, cut at %zu: %s", i, by_token ? "tokens" : "bytes", cut, golden->output);
                if (!(golden->flags & (by_token ? BYTES_ONLY : TOKENS_ONLY)))
                    expect_cut(golden, by_token, cut);
            }
    }
}

/* Text made of the formats' pieces: the events do not depend on cuts, and lose nothing. */
TEST(test_random)
{
    static const char *const pieces[] = {
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<function=",
        "now>",
        "</function>",
        "<parameter=",
        "city>",
        "</parameter>",
        "\n",
        "\n",
        " ",
        "{\"name\": \"now\"",
        ", \"arguments\": {",
        "\"a\": \"",
        "\"",
        "}",
        "}",
        "{",
        ",",
        "[1",
        "]",
        "\\",
        "a",
        "<",
        "\xc3\xa9",
        "\xe2",
        "<|python_tag|>",
        ";",
        "{\"name\": \"now\", \"parameters\": {}}",
    };
    for (int round = 0; round < 20000; round++) {
        struct text output = { 0 };
        const size_t n_pieces = 1 + random_u32() % 24;
        for (size_t i = 0; i < n_pieces; i++) {
            const char *piece = pieces[random_u32() % (COUNT(pieces))];
            text_add(&output, piece, strlen(piece));
        }
        const struct golden golden = { .form = (qn_output_form)(random_u32() % QN_OUTPUT_N_FORMS),
                                       .flags = (int)(random_u32() % 2) };
        struct transcript whole, cut;
        const bool by_token = random_u32() % 2;
        label("form %d, flags %d, tokens %d: %s", golden.form, golden.flags, by_token, output.data);
        parse(&golden, by_token, output.data, output.n, output.n, output.n, &whole);
        parse(&golden, by_token, output.data, output.n, 0, 0, &cut);
        assert_string_equal(cut.log.data, whole.log.data);
        transcript_free(&whole);
        transcript_free(&cut);
        free(output.data);
    }
}

/* What is JSON is what Jansson reads as JSON. */
TEST(test_json)
{
    static const char *const pieces[] = { "{",    "}",    "[",      "]",       "\"",      "\"a\"",  ":",  ",",
                                          " ",    "0",    "1",      "-",       "+",       ".",      "e",  "E1",
                                          "true", "null", "fals",   "\\ud83d", "\\ude00", "\\n",    "\\", "\t",
                                          "}",    "\":",  "\"b\":", "[]",      "false",   "\\u00E9" };
    size_t n_values = 0;
    for (int round = 0; round < 300000; round++) {
        struct text text = { 0 };
        if (round % 2)
            text_add(&text, "{\"a\":", 5);
        for (size_t i = 0, n = 1 + random_u32() % 8; i < n; i++) {
            const char *piece = pieces[random_u32() % (COUNT(pieces))];
            text_add(&text, piece, strlen(piece));
        }
        if (round % 2)
            text_add(&text, "}", 1);
        json_error_t error;
        json_t *json = json_loadb(text.data, text.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
        const bool is = json || json_error_code(&error) == json_error_numeric_overflow;
        label("%s", text.data);
        if (text.data[text.n - 1] != ' ' && text.data[text.n - 1] != '\t')
            assert_int_equal(qn_json_is_value(text.data, text.n), is);
        n_values += is;
        json_decref(json);
        free(text.data);
    }
    assert_true(n_values > 5000);
}

/* Bytes come when they are sure, not at the end. */
TEST(test_streams)
{
    static const struct {
        qn_output_form form;
        const char *output, *log;
    } cases[] = {
        { QN_OUTPUT_JSON, "Hello <", "C{Hello" },
        { QN_OUTPUT_JSON, "Hello <b", "C{Hello <b" },
        { QN_OUTPUT_JSON, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b", "[f|{\"a\": \"b" },
        { QN_OUTPUT_XML, "<tool_call>\n<function=f>", "[f|" },
        { QN_OUTPUT_XML, "<tool_call>\n<function=now>\n<parameter=city>\nK\xc3", "[now|{\"city\": \"K" },
        { QN_OUTPUT_XML, "<tool_call>\n<function=now>\n<parameter=city>\nKa\n</para", "[now|{\"city\": \"Ka" },
        { QN_OUTPUT_XML, "<tool_call>\n<function=now>\n<parameter=city>\nKa\n</parax",
          "[now|{\"city\": \"Ka\\n</parax" },
        { QN_OUTPUT_LLAMA3, "{\"items", "C{{\"items" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct transcript transcript = { .last_kind = -1 };
        const struct golden golden = { .form = cases[i].form };
        const qn_output_params params = params_of(&golden, false, &transcript);
        qn_output_parser *parser;
        assert_ok(qn_output_parser_create(&params, &parser));
        assert_ok(qn_output_feed(parser, -1, cases[i].output, strlen(cases[i].output)));
        text_add(&transcript.log, "", 0);
        label("case %zu", i);
        if (cases[i].form != QN_OUTPUT_LLAMA3) /* its key is decided at the quote */
            assert_string_equal(transcript.log.data, cases[i].log);
        assert_ok(qn_output_feed(parser, -1, "\"", 1));
        assert_memory_equal(transcript.log.data, cases[i].log, strlen(cases[i].log));
        transcript_free(&transcript);
        qn_output_parser_free(parser);
    }
}

TEST(test_limits)
{
    const struct golden golden = { .form = QN_OUTPUT_JSON };
    struct transcript transcript = { .last_kind = -1 };
    qn_output_params params = params_of(&golden, false, &transcript);
    params.max_call = 100;
    qn_output_parser *parser;
    assert_ok(qn_output_parser_create(&params, &parser));
    static const char begin[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"";
    assert_ok(qn_output_feed(parser, -1, begin, strlen(begin)));
    for (int i = 0; i < 1000; i++)
        assert_ok(qn_output_feed(parser, -1, "\xc3\xa9", 2));
    assert_ok(qn_output_finish(parser));
    assert_contains(transcript.log.data, "]!C{\xc3\xa9");
    assert_null(transcript.problem);
    transcript_free(&transcript);
    qn_output_parser_free(parser);

    /* Undecided calls and space are text in the end; nesting has a limit. */
    struct text output = { 0 };
    for (int i = 0; i < 400000; i++)
        text_add(&output, i % 100000 ? " " : "<tool_call>", i % 100000 ? 1 : 11);
    parse(&golden, false, output.data, output.n, 0, 1000, &transcript);
    assert_int_equal(transcript.log.n, output.n + 3);
    transcript_free(&transcript);
    for (int depth = QN_JSON_MAX_DEPTH - 1; depth <= QN_JSON_MAX_DEPTH; depth++) {
        output.n = 0;
        text_add(&output, begin, strlen(begin) - 1);
        for (int i = 0; i < depth; i++)
            text_add(&output, "[", 1);
        parse(&golden, false, output.data, output.n, 0, 0, &transcript);
        assert_int_equal(strstr(transcript.log.data, "]!C{[") != NULL, depth == QN_JSON_MAX_DEPTH);
        transcript_free(&transcript);
    }

    /* What is held back is limited. */
    static const struct {
        const char *begin, *unit;
    } undecided[] = { { "<tool_call>{\"a\": \"", "x" }, { "<tool_call>", " " }, { "So", " " } };
    for (size_t i = 0; i < COUNT(undecided); i++) {
        qn_output_params all = params_of(&golden, false, &transcript);
        transcript = (struct transcript){ .last_kind = -1 };
        assert_ok(qn_output_parser_create(&all, &parser));
        assert_ok(qn_output_feed(parser, -1, undecided[i].begin, strlen(undecided[i].begin)));
        for (int n = 0; n < 300000; n++)
            assert_ok(qn_output_feed(parser, -1, undecided[i].unit, 1));
        label("undecided %zu", i);
        assert_true(transcript.log.n > 30000);
        assert_ok(qn_output_finish(parser));
        qn_output_parser_free(parser);
        transcript_free(&transcript);
    }

    /* A name is at most 256 bytes. */
    for (int length = 256; length <= 257; length++) {
        output.n = 0;
        text_add(&output, begin, strlen("<tool_call>{\"name\": \""));
        for (int i = 0; i < length; i++)
            text_add(&output, "n", 1);
        text_add(&output, "\"}</tool_call>", strlen("\"}</tool_call>"));
        parse(&golden, false, output.data, output.n, 0, 0, &transcript);
        assert_int_equal(transcript.log.data[0], length == 256 ? '[' : 'C');
        transcript_free(&transcript);
    }
    const struct golden xml = { .form = QN_OUTPUT_XML };
    for (int length = 255; length <= 257; length++) {
        static const char tags[] = "<tool_call><function=f><parameter=";
        output.n = 0;
        text_add(&output, tags, strlen(tags));
        for (int i = 2; i < length; i++)
            text_add(&output, "k", 1);
        text_add(&output, "\xc3\xa9>v</parameter></function></tool_call>",
                 strlen("\xc3\xa9>v</parameter></function></tool_call>"));
        parse(&xml, false, output.data, output.n, 0, 0, &transcript);
        assert_int_equal(strstr(transcript.log.data, "]=") != NULL, length <= 256);
        transcript_free(&transcript);
    }
    free(output.data);
}

TEST(test_budget)
{
    for (int own = 0; own < 2; own++) {
        const struct golden golden = { .form = QN_OUTPUT_JSON, .flags = own ? 0 : THINKS };
        struct transcript transcript = { .last_kind = -1 };
        qn_output_params params = params_of(&golden, false, &transcript);
        params.reasoning_budget = 3;
        params.reasoning_end = own ? "\nEnough.\n</think>\n\n" : "\n</think>\n\n";
        qn_output_parser *parser;
        const char *words = NULL;
        size_t length = 0, n_fed = 0;
        assert_ok(qn_output_parser_create(&params, &parser));
        for (int i = 0; i < 2 * own; i++) /* does not count */
            assert_ok(qn_output_feed(parser, -1, i ? "<think>" : "\n", i ? 7 : 1));
        for (; !qn_output_reasoning_spent(parser, &words, &length); n_fed++) {
            assert_true(qn_output_in_reasoning(parser));
            assert_ok(qn_output_feed(parser, -1, n_fed % 2 ? "\xa9" : " \xc3", n_fed % 2 ? 1 : 2));
        }
        assert_int_equal(n_fed, 4); /* the third is half a character */
        assert_false(qn_output_reasoning_spent(parser, &words, &length));
        assert_ok(qn_output_feed(parser, -1, words, length));
        assert_false(qn_output_in_reasoning(parser));
        assert_false(qn_output_reasoning_spent(parser, &words, &length));
        assert_ok(qn_output_feed(parser, -1, "Yes", 3));
        assert_ok(qn_output_finish(parser));
        transcript_close(&transcript);
        assert_string_equal(transcript.log.data,
                            own ? "R{ \xc3\xa9 \xc3\xa9\nEnough.}C{Yes}" : "R{ \xc3\xa9 \xc3\xa9}C{Yes}");
        transcript_free(&transcript);
        qn_output_parser_free(parser);
    }
}

/* Models may reason again after a forced end: the budget is that of all blocks. */
TEST(test_budget_of_blocks)
{
    const struct golden golden = { .form = QN_OUTPUT_JSON, .flags = THINKS };
    struct transcript transcript = { .last_kind = -1 };
    qn_output_params params = params_of(&golden, false, &transcript);
    params.reasoning_budget = 5;
    params.reasoning_end = "\nEnough.\n</think>\n\n";
    qn_output_parser *parser;
    const char *words = NULL;
    size_t length = 0;
    assert_ok(qn_output_parser_create(&params, &parser));
    for (int block = 0; block < 5; block++) { /* 2 tokens and the end, 2, none, none, none */
        label("block %d", block);
        if (block)
            assert_ok(qn_output_feed(parser, -1, "<think>", 7));
        for (int i = 0; i < 2 && block < 2; i++) {
            assert_false(qn_output_reasoning_spent(parser, &words, &length));
            assert_ok(qn_output_feed(parser, -1, "a", 1));
        }
        const bool is_spent = qn_output_reasoning_spent(parser, &words, &length);
        assert_true(is_spent == (block > 0));
        assert_false(qn_output_reasoning_spent(parser, &words, &length));
        if (is_spent)
            assert_string_equal(words, block == 1 ? params.reasoning_end : "</think>\n\n");
        assert_ok(qn_output_feed(parser, -1, is_spent ? words : "</think>", is_spent ? length : 8));
        assert_false(qn_output_in_reasoning(parser));
        assert_false(qn_output_reasoning_spent(parser, &words, &length));
    }
    assert_ok(qn_output_feed(parser, -1, "Yes", 3));
    assert_ok(qn_output_finish(parser));
    transcript_close(&transcript);
    assert_string_equal(transcript.log.data, "R{aaaa\nEnough.}C{Yes}");
    transcript_free(&transcript);
    qn_output_parser_free(parser);
}

/* What a template prints between reasoning and content ends reasoning. */
TEST(test_words)
{
#define ANSWER "{% for m in messages %}{{ m.role }}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}"
#define END "{{ m.content }}{% endif %}{% endfor %}"
    static const struct {
        const char *template, *words;
    } cases[] = {
        { ANSWER "\n</think>\n" END, "\n</think>\n" },
        { ANSWER " So.</think>{{ '\n\n' }}" END, " So.</think>\n\n" },
        { ANSWER "</think>" END "{{ raise_exception('no') if messages|length > 1 }}", "\n</think>\n\n" },
        { ANSWER "<end>" END "{{ '</think>' }}", "\n</think>\n\n" },
        { ANSWER "{{ '</think>' * 20 }}" END, "\n</think>\n\n" },
        { "{{ messages[0].content }}</think>", "\n</think>\n\n" },
        { "{{ messages[0].content }}", "" },
    };
#undef ANSWER
#undef END
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_jinja *jinja;
        qn_output_params params;
        char words[QN_OUTPUT_MAX_WORDS];
        label("case %zu", i);
        assert_ok(qn_jinja_compile(cases[i].template, strlen(cases[i].template), &jinja));
        qn_output_form_of(jinja, &params);
        qn_output_reasoning_words(jinja, &params, words);
        assert_string_equal(words, cases[i].words);
        qn_jinja_free(jinja);
    }
}

TEST(test_forms)
{
#define CALLS "{% for m in messages %}{% for t in m.tool_calls %}{% set c = t.function %}"
#define END "{% endfor %}{% endfor %}"
    /* How templates print calls: Qwen3, Qwen3.5, Llama 3.2; and others. */
    static const struct {
        const char *template;
        qn_output_form form;
        bool known, thinks;
    } cases[] = {
        { CALLS "{{ '<tool_call>\\n{\"name\": \"' + c.name + '\", \"arguments\": ' + c.arguments|tojson + "
                "'}\\n</tool_call>' }}" END "{{ '</think>' }}",
          QN_OUTPUT_JSON, true, true },
        { CALLS
          "{{ '<tool_call>\\n<function=' + c.name }}>{% for k, v in c.arguments|items %}<parameter={{ k }}>\n{{ v }}\n"
          "</parameter>{% endfor %}</function></tool_call>" END "{{ '\"arguments\": ' }}<think>",
          QN_OUTPUT_XML, true, true },
        { "{% if tools %}" CALLS
          "{{ '{\"name\": \"' + c.name + '\", ' }}{{ '\"parameters\": ' }}{{ c.arguments|tojson }}}" END "{% endif %}",
          QN_OUTPUT_LLAMA3, true, false },
        /* Spelled, but printed in another way. */
        { CALLS "{{ '<tool_call>\\n[{\"name\": \"' + c.name + '\", \"arguments\": ' + c.arguments|tojson + "
                "'}]</tool_call>' }}" END,
          QN_OUTPUT_PLAIN, false, false },
        { CALLS "{{ '<tool_call>{\"name\": \"' + c.name + '\", \"arguments\": \"' + c.arguments.key + "
                "'\"}</tool_call>' }}" END,
          QN_OUTPUT_PLAIN, false, false },
        { CALLS "{{ '<tool_call>{\"name\": \"' + c.name + '\", \"arguments\": {\"key\": \"a\"}}</tool_call>' }}" END,
          QN_OUTPUT_PLAIN, false, false },
        { "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{{ '<tool_call>\"arguments\": ' }}",
          QN_OUTPUT_PLAIN, false, false },
        { "{% for i in range(1500) %}{% for j in range(1500) %}{% endfor %}{% endfor %}" CALLS
          "{{ '<tool_call>{\"name\": \"' + c.name + '\", \"arguments\": ' + c.arguments|tojson + '}</tool_call>' "
          "}}" END,
          QN_OUTPUT_PLAIN, false, false },
        /* Not spelled. */
        { CALLS "<TOOLCALL>{{ '{\"name\": \"' + c.name + '\", \"arguments\": ' }}" END "{{ '\"parameters\": ' }}",
          QN_OUTPUT_PLAIN, false, false },
        { CALLS "{{ '[TOOL_CALLS][' }}{{ c|tojson }}" END, QN_OUTPUT_PLAIN, false, false },
        { CALLS "<tool_call>{{ c.name }}<arg_key>" END "</think>", QN_OUTPUT_PLAIN, false, true },
        { "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}", QN_OUTPUT_PLAIN, true,
          false },
    };
#undef CALLS
#undef END
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_jinja *jinja;
        qn_output_params params;
        label("case %zu", i);
        assert_ok(qn_jinja_compile(cases[i].template, strlen(cases[i].template), &jinja));
        assert_int_equal(qn_output_form_of(jinja, &params), cases[i].known);
        assert_string_equal(qn_output_form_name(params.form), qn_output_form_name(cases[i].form));
        assert_int_equal(params.think_open.text != NULL, cases[i].thinks);
        assert_int_equal(params.think_close.text != NULL, cases[i].thinks);
        qn_jinja_free(jinja);
    }
    assert_true(qn_output_ends_with("<think>", "assistant\n<think>\n", 18));
    assert_false(qn_output_ends_with("<think>", "<think>\n\n</think>\n\n", 19));
    assert_false(qn_output_ends_with("<think>", "think>", 6));
}

TEST(test_refusals)
{
    struct transcript transcript = { .last_kind = -1 };
    const struct golden golden = { .form = QN_OUTPUT_JSON };
    static const char *const bad[] = {
        "", "a b", "\"", "\\", "\xff", "a\n", "0123456789012345678901234567890123456789012345678901234567890123456789"
    };
    qn_output_parser *parser;
    for (size_t i = 0; i < COUNT(bad); i++) {
        qn_output_params params = params_of(&golden, false, &transcript);
        params.call_open.text = bad[i];
        assert_fails(qn_output_parser_create(&params, &parser), QN_ERR_INVALID, "delimiter");
        assert_null(parser);
    }
    qn_output_params params = params_of(&golden, false, &transcript);
    params.call_close.text = NULL;
    assert_fails(qn_output_parser_create(&params, &parser), QN_ERR_INVALID, "json");
    params = params_of(&golden, false, &transcript);
    params.think_close.text = NULL;
    params.starts_in_reasoning = true;
    assert_fails(qn_output_parser_create(&params, &parser), QN_ERR_INVALID, "reasoning");
    params.on_event = NULL;
    assert_fails(qn_output_parser_create(&params, &parser), QN_ERR_INVALID, "form");
}

/* Of a tool whose schema is large only names and types are kept; those of more properties than are looked at may be
 * any. */
TEST(test_tools)
{
    enum { PROPERTIES = 40000, DEPTH = 40 };
    json_t *properties = json_object();
    json_t *tools = json_pack("[{s:s, s:{s:o}}]", "name", "f", "parameters", "properties", properties);
    qn_output_tools *kept;
    for (int i = 0; i < PROPERTIES; i++) {
        char name[16];
        json_t *nested = json_pack("{s:s}", "type", "string");
        for (int d = 0; d < DEPTH && i < 100; d++)
            nested = json_pack("{s:s, s:{s:o}}", "type", "string", "properties", "a", nested);
        snprintf(name, sizeof name, "%d", i);
        json_object_set_new(properties, name, nested);
    }
    for (int form = 0; form < QN_OUTPUT_N_FORMS; form++) {
        assert_ok(qn_output_tools_create(tools, (qn_output_form)form, &kept));
        assert_in_range(qn_output_tools_bytes(kept), 1, form == QN_OUTPUT_XML ? 40 * PROPERTIES : 2048);
        qn_output_tools_free(kept);
    }
    assert_int_equal(qn_output_tools_bytes(NULL), 0);
    json_decref(tools);
}
