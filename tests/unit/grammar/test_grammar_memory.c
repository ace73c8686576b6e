/* An allocation of JSON that fails while a schema is compiled gives QN_ERR_MEMORY, never another grammar: each
 * allocation fails once. */
#include "helper_assert.h"

#include "grammar/automaton.h"
#include "grammar/grammar.h"

/* Allocations until one fails; -1: none does. Allocations so far. */
static long until_failure = -1, n_allocations;

static void *failing_malloc(size_t n)
{
    n_allocations++;
    return until_failure >= 0 && until_failure-- == 0 ? NULL : malloc(n);
}

/* ' stands for ". Each schema has keywords that the compiler makes new schemas of. */
static const char *const schemas[] = {
    /* References, allOf and anyOf with siblings, joined keyword by keyword. */
    "{'$defs':{'d':{'type':['string','integer'],'minLength':2,'maximum':9},'e':{'minLength':3,'pattern':'a'}},"
    "'allOf':[{'$ref':'#/$defs/d','maxLength':5},{'$ref':'#/$defs/e'},{'not':{'const':'aaa'}},"
    "{'not':{'enum':['aab','aac']},'pattern':'b'}],'title':'t'}",
    "{'properties':{'a':{'enum':[1,2,3]},'b':{}},'required':['a'],'additionalProperties':{'type':'integer'},'allOf':["
    "{'properties':{'a':{'enum':[2,3,4]},'c':{'multipleOf':4}},'required':['c'],'additionalProperties':{'minimum':1}},"
    "{'properties':{'c':{'multipleOf':6,'maximum':40}},'anyOf':[{'required':['a']},{'required':['b']}]}],"
    "'anyOf':[{'properties':{'a':{'const':2}}},{'properties':{'a':{'const':3}}}]}",
    "{'type':['integer','null'],'minimum':1,'exclusiveMinimum':true,'maximum':30,'allOf':[{'maximum':20,"
    "'exclusiveMaximum':true},{'type':['number','string']},{'multipleOf':2},{'multipleOf':3}]}",
    "{'$defs':{'d':{'type':'string','minLength':1}},'properties':{'a':{'$ref':'#/$defs/d','maxLength':3}},"
    "'required':['a']}",
    "{'allOf':[{'const':1},{'const':1.0},{'type':'integer','if':{'minimum':0},'then':{'maximum':5},'else':false}]}",
    /* Alternatives that exclude each other only by negations. */
    "{'type':'object','properties':{'k':{'enum':['a','b','c']},'n':{'type':'number'}},'required':['k'],'oneOf':["
    "{'properties':{'k':{'enum':['a','b']}}},{'properties':{'k':{'const':'b'},'n':{'minimum':3}},'required':['n']},"
    "{'properties':{'k':{'const':'c'}},'additionalProperties':false}]}",
    "{'oneOf':[{'minLength':3},{'pattern':'^a'},{'enum':[1,2,'abc',true]},{'type':['boolean','array']}]}",
    /* Conditions, negations and dependencies. */
    "{'type':'object','properties':{'a':{'type':'boolean'},'b':{'type':'integer'}},'required':['a'],"
    "'if':{'properties':{'a':{'const':true}}},'then':{'required':['b']},'else':{'properties':{'b':false}}}",
    "{'properties':{'a':{},'b':{'type':'integer'}},'required':['a','b'],'if':{'properties':{'a':{'minItems':2},"
    "'b':{'multipleOf':2}},'required':['a']},'then':{'maxProperties':3}}",
    "{'type':'object','properties':{'a':{},'b':{},'c':{'type':'string'}},'dependentRequired':{'a':['b']},"
    "'dependentSchemas':{'b':{'properties':{'c':{'minLength':2}}}},'not':{'required':['a','c']}}",
    "{'type':['number','string','boolean'],'not':{'enum':[1,3,'a',true]}}",
    "{'not':{'anyOf':[{'type':'integer'},{'maxLength':2},{'pattern':'z'},{'oneOf':[{'maxItems':1},{'minItems':5}]},"
    "{'dependentRequired':{'a':['b']}},{'if':{'required':['x']},'then':{'required':['y']}}]}}",
    "{'type':'object','properties':{'a':{'$ref':'#/$defs/d'},'b':{}},'additionalProperties':false,'not':{'allOf':["
    "{'properties':{'a':{'$ref':'#/$defs/d'}},'additionalProperties':false},{'not':{'minProperties':1}}]},"
    "'$defs':{'d':{'enum':[1,2]}}}",
    /* Constants: filtered, joined, of arrays and objects. */
    "{'enum':['a1','b22','c',4,7.0,2.5,null,[1,'x'],{'k':[2.0]}],'pattern':'[0-9]','minimum':5,'minItems':2,"
    "'not':{'const':'a1'}}",
    "{'allOf':[{'const':{'a':[1,{'b':null}],'c':'d'}},{'type':'object','required':['a'],'properties':{'c':{'minLength':"
    "1}}}]}",
    "{'type':'array','uniqueItems':true,'items':{'type':['boolean','integer'],'minimum':1,'maximum':4},'minItems':2}",
    "{'type':'array','uniqueItems':true,'items':{'type':['null','boolean']}}",
    /* Names of members. */
    "{'type':'object','patternProperties':{'^a':{'type':'integer'},'b$':{'minimum':2}},'properties':{'ab':{},'c':{}},"
    "'required':['ab','abb'],'additionalProperties':false}",
    "{'type':'object','propertyNames':{'enum':['a','b']},'properties':{'a':{'type':'string'},'z':{}}}",
    "{'type':'object','propertyNames':{'const':'a'},'additionalProperties':{'type':'null'}}",
    "{'type':'object','propertyNames':{'allOf':[{'pattern':'^x'},{'not':{'const':'xx'}}],'maxLength':4},"
    "'properties':{'xa':{},'b':{}},'additionalProperties':{'type':'integer'}}",
};

enum { SCHEMA, STRICT, XML, JSON, N_WAYS };

static qn_status compile(int way, json_t *schema, json_t *tools, qn_grammar **out)
{
    qn_output_params output;
    *out = NULL;
    if (way == SCHEMA || way == STRICT)
        return qn_grammar_from_schema(schema, &(qn_grammar_options){ .strict = way == STRICT }, out);
    qn_output_params_init(&output, way == XML ? QN_OUTPUT_XML : QN_OUTPUT_JSON);
    return qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, out);
}

static bool are_same_objects(const qn_object_rule *a, const qn_object_rule *b)
{
    bool same = a->n_properties == b->n_properties && a->n_spellings == b->n_spellings && a->min == b->min &&
                a->max == b->max && a->additional == b->additional && a->is_ordered == b->is_ordered &&
                a->rest == b->rest && a->others == b->others && a->n_other_rules == b->n_other_rules &&
                a->first == b->first && a->more == b->more && a->close == b->close &&
                !memcmp(a->required, b->required, sizeof a->required) &&
                !memcmp(a->usable, b->usable, sizeof a->usable);
    for (uint32_t i = 0; same && i < a->n_spellings; i++)
        same =
            !strcmp(a->spellings[i].text, b->spellings[i].text) && a->spellings[i].property == b->spellings[i].property;
    for (uint32_t i = 0; same && i < a->n_properties; i++)
        same = a->values[i] == b->values[i] && a->value_rules[i] == b->value_rules[i];
    return same;
}

static bool are_same_dfas(const qn_dfa *a, const qn_dfa *b)
{
    return a->n_states == b->n_states && a->n_classes == b->n_classes &&
           !memcmp(a->class_of, b->class_of, sizeof a->class_of) &&
           !memcmp(a->next, b->next, sizeof *a->next * a->n_states * a->n_classes) &&
           !memcmp(a->accept, b->accept, a->n_states);
}

static bool are_same(const qn_grammar *a, const qn_grammar *b)
{
    bool same = a->n_nodes == b->n_nodes && a->n_dfas == b->n_dfas && a->n_strings == b->n_strings &&
                a->n_objects == b->n_objects && a->n_arrays == b->n_arrays && a->n_lists == b->n_lists &&
                a->n_rules == b->n_rules && a->root == b->root &&
                !memcmp(a->nodes, b->nodes, a->n_nodes * sizeof *a->nodes);
    for (size_t i = 0; same && i < a->n_dfas; i++)
        same = are_same_dfas(&a->dfas[i], &b->dfas[i]);
    for (size_t i = 0; same && i < a->n_strings; i++)
        same = a->strings[i].min == b->strings[i].min && a->strings[i].max == b->strings[i].max &&
               a->strings[i].dfa == b->strings[i].dfa && a->strings[i].form == b->strings[i].form;
    for (size_t i = 0; same && i < a->n_objects; i++)
        same = are_same_objects(&a->objects[i], &b->objects[i]);
    for (size_t i = 0; same && i < a->n_arrays; i++)
        same = a->arrays[i].min == b->arrays[i].min && a->arrays[i].max == b->arrays[i].max &&
               a->arrays[i].n_prefix == b->arrays[i].n_prefix;
    for (size_t i = 0; same && i < a->n_rules; i++)
        same = a->rules[i].entry == b->rules[i].entry;
    return same;
}

/* Compiles a schema with each allocation failing in turn. */
static void check(int way, json_t *schema, json_t *tools)
{
    qn_grammar *whole, *grammar;
    until_failure = -1;
    n_allocations = 0;
    const qn_status expected = compile(way, schema, tools, &whole);
    const long n = n_allocations;
    if (getenv("QN_VERBOSE"))
        print_message("%ld allocations, status %d: %s\n", n, expected, expected ? qn_error_text() : "");
    assert_true(expected == QN_OK || way != SCHEMA);
    for (long i = 0; i < n; i++) {
        until_failure = i;
        const qn_status status = compile(way, schema, tools, &grammar);
        until_failure = -1;
        if (status != QN_ERR_MEMORY) {
            label("way %d, allocation %ld of %ld", way, i, n);
            assert_int_equal(status, expected);
            assert_true(status != QN_OK || are_same(grammar, whole));
        }
        qn_grammar_free(grammar);
    }
    qn_grammar_free(whole);
}

TEST(test_failed_allocations)
{
    json_set_alloc_funcs(failing_malloc, free);
    for (size_t i = 0; i < COUNT(schemas); i++) {
        char text[600];
        assert_true(strlen(schemas[i]) < sizeof text);
        for (size_t k = 0; k <= strlen(schemas[i]); k++)
            text[k] = schemas[i][k] == '\'' ? '"' : schemas[i][k];
        label("%s", text);
        json_t *schema = json_loads(text, 0, NULL);
        assert_non_null(schema);
        json_t *tools = json_pack("[{s:{s:s,s:{s:s,s:{s:O,s:{}}}}}]", "function", "name", "f", "parameters", "type",
                                  "object", "properties", "p", schema, "q");
        assert_non_null(tools);
        for (int way = 0; way < N_WAYS; way++)
            check(way, schema, tools);
        json_decref(tools);
        json_decref(schema);
    }
    json_set_alloc_funcs(malloc, free);
}
