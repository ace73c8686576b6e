/* Names of the hub, the hub's list of files, and which of them a name means. The network and the cache are tested with
 * a server, in tests/e2e/hub_*.sh. */
#include "helper_assert.h"

#include "hub/files.h"
#include "hub/header.h"
#include "hub/name.h"

/* ---- Names ---- */

TEST(test_names)
{
    static const struct {
        const char *text, *repo, *file, *type, *revision;
    } good[] = {
        { "prism-ml/Bonsai-8B-gguf", "prism-ml/Bonsai-8B-gguf", "", "", "main" },
        { "a/b:Q1_0", "a/b", "", "Q1_0", "main" },
        { "a/b:ptq1_0", "a/b", "", "ptq1_0", "main" },
        { "unsloth/m-GGUF:UD-Q4_K_XL", "unsloth/m-GGUF", "", "UD-Q4_K_XL", "main" },
        { "a/b:c.gguf", "a/b", "c.gguf", "", "main" },
        { "a/b:c/d e.gguf", "a/b", "c/d e.gguf", "", "main" },
        { "a/b:c/d", "a/b", "c/d", "", "main" },
        { "_a/b_.1", "_a/b_.1", "", "", "main" },
        { "a/b:c:d.gguf", "a/b", "c:d.gguf", "", "main" },
        { "a/b:\xc2\xa9.g", "a/b", "\xc2\xa9.g", "", "main" },
        { "a/b@v1.0", "a/b", "", "", "v1.0" },
        { "a/b@refs/pr/1:Q1_0", "a/b", "", "Q1_0", "refs/pr/1" },
        { "a/b@main:c@d.gguf", "a/b", "c@d.gguf", "", "main" },
        { "hf.co/a/b", "a/b", "", "", "main" },
        { "hf.co/a/b:Q1_0", "a/b", "", "Q1_0", "main" },
        { "https://hf.co/a/b@v1:c.gguf", "a/b", "c.gguf", "", "v1" },
        { "HTTPS://www.HuggingFace.co/a/b/", "a/b", "", "", "main" },
        { "http://huggingface.co/a/b?library=gguf#x", "a/b", "", "", "main" },
        { "https://huggingface.co/a/b/tree/main", "a/b", "", "", "main" },
        { "https://huggingface.co/a/b/blob/main/c.gguf", "a/b", "c.gguf", "", "main" },
        { "huggingface.co/a/b/resolve/v2/c%20d/e.gguf?download=true", "a/b", "c d/e.gguf", "", "v2" },
        { "huggingface.co/a/b/raw/refs%2Fpr%2F1/c", "a/b", "c", "", "refs/pr/1" },
        { "huggingface.co/a/b/tree/refs/pr/1/", "a/b", "", "", "refs/pr/1" },
    };
    qn_hub_name name;
    for (size_t i = 0; i < COUNT(good); i++) {
        label("%s", good[i].text);
        assert_ok(qn_hub_name_parse(good[i].text, &name));
        assert_string_equal(name.repo, good[i].repo);
        assert_string_equal(name.file, good[i].file);
        assert_string_equal(name.type, good[i].type);
        assert_string_equal(name.revision, good[i].revision);
        assert_true(qn_hub_name_is(good[i].text));
    }
    static const char *const bad[] = {
        "",
        "a",
        "a/",
        "/a",
        "a/b/c",
        "./a",
        "../a",
        "a/..",
        "a/.b",
        "a/b.",
        "-a/b",
        "a/b-",
        "a b/c",
        "a/b--c",
        "a/b..c",
        "a/b.git",
        "a/b\n",
        "a/b:",
        "a/b:..",
        "a/b:../c",
        "a/b:/c",
        "a/b:c//d",
        "a/b:c/",
        "a/b:c/../d",
        "a/b:./c",
        "a/b:c\\d.gguf",
        "a/b:c\x01.gguf",
        "a/b:-Q1",
        "a/b:Q1_0+",
        "a/b:c\x7f.g",
        "a/b:c\xc2\x9b.g",
        "a/b:1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1/2/3/c.gguf",
        "a\\b/c",
        "\xc3\xa9/b",
        "a/b:Q1_0 ",
        "a/b@",
        "a/b@:c.gguf",
        "a/b@-v",
        "a/b@../v",
        "a/b@v/../w",
        "a/b@v/",
        "a/b@v w",
        "a/b@v@w",
        "hf.co/a",
        "hf.co//b",
        "hf.co/a/b/c",
        "hf.co/a/b/blob/main/../c.gguf",
        "hf.co/a/b/blob/main/%2e%2e/c.gguf",
        "hf.co/a/b/blob/main/%01.gguf",
        "hf.co/a/b/blob/%2e%2e/c.gguf",
        "hf.co/a/b/blob//c.gguf",
        "hf.co/a/b/tree/main/c",
        "https://huggingface.co/datasets/a/b",
        "https://example.com/a/b",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        label("'%s'", bad[i]);
        assert_int_equal(qn_hub_name_parse(bad[i], &name), QN_ERR_INVALID);
        assert_false(qn_hub_name_is(bad[i]));
    }
    assert_false(qn_hub_name_is("models/file.gguf"));
    assert_true(qn_hub_name_is("models/x:file.gguf"));
    char text[QN_HUB_PATH_SIZE + 64];
    memset(text, 'a', sizeof text);
    memcpy(text, "o/", 2);
    text[2 + 96] = '\0';
    assert_ok(qn_hub_name_parse(text, &name));
    text[2 + 96] = 'a';
    text[2 + 97] = '\0';
    assert_int_equal(qn_hub_name_parse(text, &name), QN_ERR_INVALID);
    text[2 + 97] = 'a';
    memcpy(text, "o/r:.", 5);
    text[4 + 255] = '\0';
    assert_ok(qn_hub_name_parse(text, &name));
    text[4 + 255] = 'a';
    text[4 + 256] = '\0';
    assert_int_equal(qn_hub_name_parse(text, &name), QN_ERR_INVALID);
    for (size_t i = 4; i < sizeof text; i++)
        text[i] = i % 64 ? 'a' : '/';
    text[4] = 'a';
    text[4 + QN_HUB_PATH_SIZE - 1] = '\0'; /* ends in "a", one less than the size */
    assert_ok(qn_hub_name_parse(text, &name));
    text[4 + QN_HUB_PATH_SIZE - 1] = 'a';
    text[4 + QN_HUB_PATH_SIZE + 1] = '\0';
    assert_int_equal(qn_hub_name_parse(text, &name), QN_ERR_INVALID);
}

TEST(test_hashes)
{
    static const char sha256[] = "ba11c17412b5136347ea20891fe3ce35c3e51d277da06b8ca555ff32e60911f2";
    assert_true(qn_hub_is_etag(sha256));
    assert_true(qn_hub_is_etag(sha256 + 24));
    assert_false(qn_hub_is_etag(sha256 + 1));
    assert_false(qn_hub_is_etag(""));
    assert_false(qn_hub_is_etag("BA11C17412B5136347EA20891FE3CE35C3E51D277DA06B8CA555FF32E60911F2"));
    assert_false(qn_hub_is_etag("../../../../../../../../../../etc/passwd"));
}

TEST(test_types_in_names)
{
    static const struct {
        const char *path, *type;
    } cases[] = {
        { "Bonsai-8B-Q1_0.gguf", "Q1_0" },
        { "Ternary-Bonsai-2-27B-PTQ1_0.gguf", "PTQ1_0" },
        { "model.q4_k_m.gguf", "Q4_K_M" },
        { "ggml-model-iq3_xxs.gguf", "IQ3_XXS" },
        { "Q8_0/model-F16.gguf", "F16" },
        { "Q8_0/model.gguf", "" },
        { "m-UD-Q4_K_XL-00001-of-00002.gguf", "UD-Q4_K_XL" },
        { "m_bf16.gguf", "BF16" },
        { "gpt-oss-20b-MXFP4.gguf", "MXFP4" },
        { "Q4-something-Q5_1.gguf", "Q5_1" },
        { "Qwen3-8B.gguf", "" },
        { "m-Q4_0_imatrix.gguf", "Q4_0" }, /* a piece of more than three letters is no part of a type */
        { "m-F16x.gguf", "" },
        { "", "" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char type[QN_HUB_TYPE_SIZE];
        label("%s", cases[i].path);
        assert_int_equal(qn_hub_path_type(cases[i].path, type), *cases[i].type != '\0');
        assert_string_equal(type, cases[i].type);
    }
}

/* ---- The choice ---- */

static qn_hub_files listed; /* of the current test */

static void add(const char *path, uint64_t size)
{
    assert_ok(qn_hub_files_add(&listed, path, size, NULL));
}

/* The name of the first selected file; NULL if the selection is refused. */
static const char *select_from(const char *text, uint64_t memory, size_t expected)
{
    qn_hub_name name;
    qn_hub_selection selection;
    assert_ok(qn_hub_name_parse(text, &name));
    qn_hub_files_sort(&listed);
    const char *path = NULL;
    if (qn_hub_select(&listed, &name, memory, &selection) == QN_OK) {
        assert_int_equal(selection.count, expected);
        uint64_t bytes = 0;
        for (size_t i = 0; i < selection.count; i++)
            bytes += listed.at[selection.at[i]].size;
        assert_int_equal(selection.bytes, bytes);
        path = listed.at[selection.at[0]].path;
    }
    qn_hub_selection_free(&selection);
    return path;
}

#define assert_selects(text, memory, n, path) assert_string_equal(select_from(text, memory, n), path)

TEST(test_best)
{
    static const uint64_t giga = 1000000000;
    add("m-F16.gguf", 16 * giga);
    add("m-Q8_0.gguf", 9 * giga);
    add("m-Q4_K_M.gguf", 5 * giga);
    add("m-IQ3_XXS.gguf", 8 * giga);
    add("mmproj-Q8_0.gguf", 1);
    add("imatrix.gguf", 1);
    assert_selects("a/b", 100 * giga, 1, "m-Q8_0.gguf");
    assert_selects("a/b", 10 * giga, 1, "m-Q4_K_M.gguf"); /* 9 are more than four fifths */
    assert_null(select_from("a/b", 6 * giga, 1));
    assert_text("the smallest is m-Q4_K_M.gguf with 5 GB");
    add("m-PTQ1_0.gguf", 6 * giga);
    add("m-PQ2_0.gguf", 7 * giga);
    assert_selects("a/b", 100 * giga, 1, "m-PQ2_0.gguf");
    assert_selects("a/b", 8 * giga, 1, "m-PTQ1_0.gguf");
    assert_selects("a/b", 7 * giga, 1, "m-Q4_K_M.gguf");
    assert_selects("a/b:f16", 1, 1, "m-F16.gguf"); /* what is named need not fit */
    assert_selects("a/b:Q4_K", 1, 1, "m-Q4_K_M.gguf");
    assert_selects("a/b:iq3_xxs", 1, 1, "m-IQ3_XXS.gguf");
    assert_selects("a/b:mmproj-Q8_0.gguf", 1, 1, "mmproj-Q8_0.gguf");
    assert_selects("a/b:Q4", 1, 1, "m-Q4_K_M.gguf");
    assert_null(select_from("a/b:Q5_0", 1, 1));
    assert_text("no model of type Q5_0; there is F16, IQ3_XXS, PQ2_0, PTQ1_0, Q4_K_M, Q8_0");
    qn_hub_files_free(&listed);

    add("m-F32.gguf", 2);
    add("m-BF16.gguf", 1);
    assert_selects("a/b", giga, 1, "m-BF16.gguf");
    add("model.gguf", 1); /* of a type that its name does not say */
    assert_selects("a/b", giga, 1, "model.gguf");
    qn_hub_files_free(&listed);
    assert_null(select_from("a/b", giga, 1));
    assert_null(select_from("a/b:x.gguf", giga, 1));
}

/* Names of files as the hub has them. */
TEST(test_types_with_words)
{
    add("UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", 2);
    add("UD-Q4_K_XL/m-UD-Q4_K_XL-00002-of-00002.gguf", 2);
    add("m-UD-IQ2_M.gguf", 1);
    add("m-UD-Q5_K_M.gguf", 9);
    add("m-Q5_K_M.gguf", 8);
    add("m.i1-Q6_K.gguf", 5);
    add("m-Q6_K-Q8_0.gguf", 6);
    static const struct {
        const char *wanted, *found;
        size_t n;
    } cases[] = {
        { "a/b:UD-Q4_K_XL", "UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", 2 },
        { "a/b:ud-q4_k_xl", "UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", 2 },
        { "a/b:Q4_K_XL", "UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", 2 },
        { "a/b:UD-Q4_K", "UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", 2 },
        { "a/b:q4_k", "UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf", 2 },
        { "a/b:iq2_m", "m-UD-IQ2_M.gguf", 1 },
        { "a/b:Q5_K_M", "m-Q5_K_M.gguf", 1 },
        { "a/b:UD-Q5_K_M", "m-UD-Q5_K_M.gguf", 1 },
        { "a/b:i1-Q6_K", "m.i1-Q6_K.gguf", 1 },
        { "a/b:q6_k-q8_0", "m-Q6_K-Q8_0.gguf", 1 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].wanted);
        const char *found = select_from(cases[i].wanted, 1, cases[i].n);
        assert_non_null(found);
        assert_string_equal(found, cases[i].found);
    }
    static const char *const none[] = { "a/b:D-IQ2_M", "a/b:1-Q6_K", "a/b:i1-Q6", "a/b:UD" };
    for (size_t i = 0; i < COUNT(none); i++) {
        label("%s", none[i]);
        assert_null(select_from(none[i], 1, 1));
    }
    assert_text("3 models match the type UD; name a file: UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf, "
                "m-UD-IQ2_M.gguf, m-UD-Q5_K_M.gguf");
    assert_selects("a/b", 100, 1, "m-UD-Q5_K_M.gguf"); /* of a format that quern reads */
    qn_hub_files_free(&listed);
}

TEST(test_split)
{
    add("d/m-Q4_0-00002-of-00003.gguf", 2);
    add("d/m-Q4_0-00001-of-00003.gguf", 1);
    assert_null(select_from("a/b", 100, 3));
    assert_text("lacks 'd/m-Q4_0-00003-of-00003.gguf'");
    assert_null(select_from("a/b:Q4_0", 100, 3));
    assert_text("d/m-Q4_0-00003-of-00003.gguf");
    add("d/m-Q4_0-00003-of-00003.gguf", 3);
    add("d/m-Q4_0-00004-of-00003.gguf", 3); /* no part: its number is too large */
    add("d/m-Q4_0-0001-of-00003.gguf", 3);  /* no part: four digits */
    assert_selects("a/b:d/m-Q4_0-00002-of-00003.gguf", 100, 3, "d/m-Q4_0-00001-of-00003.gguf");
    assert_selects("a/b:m-Q4_0-00003-of-00003.gguf", 100, 3, "d/m-Q4_0-00001-of-00003.gguf");
    assert_selects("a/b:d/m-Q4_0-0001-of-00003.gguf", 100, 1, "d/m-Q4_0-0001-of-00003.gguf");
    static const char *const alone[] = { "f/m-Q4_0-00001-of-00000.gguf", "f/m-Q4_0-00000-of-00002.gguf",
                                         "f/m-Q4_0-00001-of-00001.gguf", "f/m-Q4_0-00003-of-00002.gguf",
                                         "f/m-Q4_0-00001-of-09999.gguf", "f/m-Q4_0-00001-of-0000x.gguf" };
    for (size_t i = 0; i < COUNT(alone); i++) {
        char name[80];
        label("%s", alone[i]);
        add(alone[i], 5);
        snprintf(name, sizeof name, "a/b:%s", alone[i]);
        assert_selects(name, 100, 1, alone[i]);
    }
    add("e/m-Q4_0-00003-of-00003.gguf", 3);
    assert_null(select_from("a/b:m-Q4_0-00003-of-00003.gguf", 100, 3));
    assert_text("2 of its files");
    qn_hub_files_free(&listed);
}

/* ---- Drafters ---- */

TEST(names_of_drafters)
{
    static const struct {
        const char *path;
        qn_hub_guess guess;
    } cases[] = {
        { "Qwen3.6-27B-Q8_0.gguf", QN_HUB_ORDINARY },
        { "mtp-Qwen3.6-27B-NVFP4.gguf", QN_HUB_MTP },
        { "MTP-x.gguf", QN_HUB_MTP },
        { "MTP/gemma-4-E2B-it-Q8_0-MTP.gguf", QN_HUB_MTP },
        { "UD-Q2/MTP/x.gguf", QN_HUB_MTP },
        { "Qwen3-Next-MTP-only-BF16.gguf", QN_HUB_MTP },
        { "x-mtp-head.gguf", QN_HUB_MTP },
        { "Qwen3.6-27B-NVFP4-Q4_K_M-mtp.gguf", QN_HUB_PERHAPS_MTP },
        { "ornith-9b-mtp-kl-Q8_0.gguf", QN_HUB_PERHAPS_MTP },
        { "Qwen3.6-27B-MTP-GGUF/x.gguf", QN_HUB_MTP },
        { "Qwen3.6-35B-A3B-DFlash-Q8_0.gguf", QN_HUB_DRAFTER },
        { "dflash-draft-3.6-q4_k_m.gguf", QN_HUB_DRAFTER },
        { "eagle3-x.gguf", QN_HUB_DRAFTER },
        { "Qwen3.6-27B-PRISM-EAGLE3.gguf", QN_HUB_DRAFTER },
        { "Mistral-Small-DRAFT-0.5B_Q8_0.gguf", QN_HUB_DRAFTER },
        { "model_draft_q8_0.gguf", QN_HUB_DRAFTER },
        { "drafts/x.gguf", QN_HUB_DRAFTER },
        { "smtp-x.gguf", QN_HUB_ORDINARY }, /* parts of words are none */
        { "overdraft-x.gguf", QN_HUB_ORDINARY },
        { "beagle3.gguf", QN_HUB_ORDINARY },
        { "mtp2-x.gguf", QN_HUB_ORDINARY },
        { "dflash", QN_HUB_DRAFTER }, /* words that are looked for */
        { "mtp", QN_HUB_PERHAPS_MTP },
        { "Q8_0", QN_HUB_ORDINARY },
        { "", QN_HUB_ORDINARY },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].path);
        assert_int_equal(qn_hub_guess_drafter(cases[i].path), cases[i].guess);
    }
}

/* What is said about drafters after a selection. */
static const char *offer_after(const char *text)
{
    static char line[512];
    qn_hub_name name;
    qn_hub_selection selection;
    assert_ok(qn_hub_name_parse(text, &name));
    qn_hub_files_sort(&listed);
    assert_ok(qn_hub_select(&listed, &name, UINT64_MAX, &selection));
    assert_ok(qn_hub_offer_drafter(&listed, &name, &selection, line, sizeof line));
    qn_hub_selection_free(&selection);
    return line;
}

/* Sets what a listed file was found to be. */
static void has_role(const char *path, qn_file_role role)
{
    qn_hub_files_sort(&listed);
    for (size_t i = 0; i < listed.count; i++)
        if (strcmp(listed.at[i].path, path) == 0) {
            listed.at[i].has_role = true;
            listed.at[i].role = role;
            return;
        }
    fail_msg("%s is not listed", path);
}

TEST(drafters_are_not_selected)
{
    static const uint64_t giga = 1000000000;
    add("m-F16.gguf", 16 * giga);
    add("m-Q4_K_M.gguf", 5 * giga);
    add("mtp-m-Q8_0.gguf", 1 * giga);
    add("m-MTP-BF16.gguf", 2 * giga); /* a head: the model has 16 in this type and that */
    add("m-DFlash-Q8_0.gguf", 2 * giga);
    add("m-EAGLE3-F32.gguf", 1 * giga);
    add("m-draft-Q1_0.gguf", 1 * giga);
    assert_selects("a/b", 100 * giga, 1, "m-Q4_K_M.gguf");
    assert_null(select_from("a/b:Q8_0", 100 * giga, 1));
    assert_text("no model of type Q8_0; there is F16, Q4_K_M");
    assert_null(select_from("a/b:BF16", 100 * giga, 1));
    assert_selects("a/b:F16", 1, 1, "m-F16.gguf");
    assert_selects("a/b:mtp-m-Q8_0.gguf", 1, 1, "mtp-m-Q8_0.gguf"); /* named ones are */
    assert_selects("a/b:dflash", 1, 1, "m-DFlash-Q8_0.gguf");
    assert_selects("a/b:eagle3", 1, 1, "m-EAGLE3-F32.gguf");
    qn_hub_files_free(&listed);
}

/* Models with their block have names with MTP; such a block alone is small. */
TEST(models_with_a_block)
{
    static const uint64_t giga = 1000000000;
    add("x-mtp-kl-Q8_0.gguf", 9 * giga);
    add("x-mtp-kl-Q4_K_M.gguf", 6 * giga);
    add("mtp-x-mtp-kl-Q8_0.gguf", 2 * giga);
    assert_selects("a/b:Q8_0", 1, 1, "x-mtp-kl-Q8_0.gguf");
    assert_selects("a/b", 100 * giga, 1, "x-mtp-kl-Q8_0.gguf");
    assert_string_equal(offer_after("a/b"),
                        "this repository has a drafter, 2 GB: pull it with quern pull "
                        "a/b:mtp-x-mtp-kl-Q8_0.gguf; use it with --draft-model FILE or quern graft");
    qn_hub_files_free(&listed);
    add("y-Q4_K_M.gguf", 6 * giga);
    add("y-MTP-Q4_K_M.gguf", 7 * giga);
    add("y-MTP-Q8_0.gguf", 10 * giga); /* no other file has its type, and it is not small */
    assert_selects("a/b:Q8_0", 1, 1, "y-MTP-Q8_0.gguf");
    assert_selects("a/b", 100 * giga, 1, "y-MTP-Q8_0.gguf");
    assert_string_equal(offer_after("a/b"), "");
    qn_hub_files_free(&listed);
    add("z-Q4_K_M.gguf", 0); /* sizes that are not known */
    add("z-MTP-Q4_K_M.gguf", 0);
    assert_null(select_from("a/b:Q4_K_M", 1, 1));
    assert_text("2 models match");
    qn_hub_files_free(&listed);
}

TEST(repositories_of_drafters)
{
    qn_hub_name name;
    qn_hub_selection selection;
    add("m-DFlash-Q8_0.gguf", 2);
    add("m-DFlash-BF16.gguf", 3);
    assert_selects("a/m-DFlash", 100, 1, "m-DFlash-Q8_0.gguf");
    assert_selects("a/m-DFlash:BF16", 1, 1, "m-DFlash-BF16.gguf");
    assert_ok(qn_hub_name_parse("a/m-DFlash", &name));
    assert_ok(qn_hub_select(&listed, &name, 100, &selection));
    assert_true(selection.is_drafter);
    qn_hub_selection_free(&selection);
    assert_string_equal(offer_after("a/m-DFlash"),
                        "m-DFlash-Q8_0.gguf is a drafter, which runs next to a model: use it with --draft-model FILE");
    add("m-Q4_0.gguf", 9);
    assert_selects("a/m-DFlash", 100, 1, "m-Q4_0.gguf");
    assert_ok(qn_hub_name_parse("a/m-DFlash:dflash", &name));
    name.type[0] = '\0';
    assert_ok(qn_hub_select(&listed, &name, 100, &selection));
    assert_false(selection.is_drafter);
    qn_hub_selection_free(&selection);
    qn_hub_files_free(&listed);
}

/* Content decides, but a small model that is meant to draft is like any other. */
TEST(drafters_by_their_content)
{
    add("m-Q4_0.gguf", 9);
    add("other-Q8_0.gguf", 3);
    add("mtp-whole-Q5_0.gguf", 8);
    add("m-draft-F16.gguf", 1);
    add("eyes-Q4_1.gguf", 1);
    assert_selects("a/b", 100, 1, "m-Q4_0.gguf");
    assert_selects("a/b:Q8_0", 1, 1, "other-Q8_0.gguf");
    has_role("other-Q8_0.gguf", QN_FILE_DRAFTER);
    has_role("mtp-whole-Q5_0.gguf", QN_FILE_MODEL);
    has_role("m-draft-F16.gguf", QN_FILE_MODEL);
    has_role("eyes-Q4_1.gguf", QN_FILE_PROJECTOR);
    assert_null(select_from("a/b:Q8_0", 1, 1));
    assert_selects("a/b:Q5_0", 1, 1, "mtp-whole-Q5_0.gguf");
    assert_null(select_from("a/b:F16", 1, 1));
    assert_null(select_from("a/b:Q4_1", 1, 1));
    qn_hub_files_free(&listed);
}

TEST(the_drafter_that_fits)
{
    add("Qwen3.6-27B-Q4_K_M.gguf", 16000000000);
    add("Qwen3.6-9B-Q4_K_M.gguf", 6000000000);
    add("mtp-Qwen3.6-9B-Q8_0.gguf", 3000000000);
    add("mtp-Qwen3.6-27B-BF16.gguf", 5600000000);
    add("mtp-Qwen3.6-27B-Q8_0.gguf", 3000000000);
    add("mtp-Qwen3.6-27B-Q4_0.gguf", 1600000000);
    assert_contains(offer_after("a/b:Qwen3.6-27B-Q4_K_M.gguf"),
                    "quern pull a/b:mtp-Qwen3.6-27B-Q8_0.gguf; use it with");
    assert_contains(offer_after("a/b@v1:Qwen3.6-9B-Q4_K_M.gguf"), "quern pull a/b@v1:mtp-Qwen3.6-9B-Q8_0.gguf; use it");
    assert_contains(offer_after("a/b:mtp-Qwen3.6-27B-Q4_0.gguf"), "mtp-Qwen3.6-27B-Q4_0.gguf is a drafter");
    qn_hub_files_free(&listed);
    add("m-Q4_0.gguf", 9);
    add("config.json", 1);
    add("mtp-m-Q8_0-00001-of-00002.gguf", 1); /* a part is missing */
    assert_string_equal(offer_after("a/b"), "");
    assert_string_equal(offer_after("a/b:config.json"), "");
    qn_hub_files_free(&listed);
}

/* ---- The hub's answer ---- */

#define SHA "\"sha\": \"0123456789abcdef0123456789abcdef01234567\""

static qn_status parse(const char *json, qn_hub_files *files)
{
    return qn_hub_files_parse(json, strlen(json), files);
}

TEST(test_answer)
{
    qn_hub_files files;
    assert_ok(parse(
        "{" SHA ", \"siblings\": [{\"rfilename\": \"z.gguf\", \"size\": 9, \"blobId\": \"00\",\"lfs\": {\"size\": 7, "
        "\"sha256\": \"ba11c17412b5136347ea20891fe3ce35c3e51d277da06b8ca555ff32e60911f2\"}},{\"rfilename\": "
        "\"a.txt\", \"size\": -3, \"blobId\": \"0123456789abcdef0123456789abcdef01234567\", \"lfs\": "
        "null},{\"rfilename\": \"../up.txt\"}, {\"rfilename\": \"huge\", \"size\": 9007199254740993000}]}",
        &files));
    assert_int_equal(files.count, 3);
    assert_string_equal(files.commit, "0123456789abcdef0123456789abcdef01234567");
    assert_string_equal(files.at[0].path, "a.txt");
    assert_string_equal(files.at[0].hash, "0123456789abcdef0123456789abcdef01234567");
    assert_int_equal(files.at[0].size, 0);
    assert_int_equal(files.at[1].size, 0); /* too large to be believed */
    assert_string_equal(files.at[2].path, "z.gguf");
    assert_int_equal(files.at[2].size, 7);
    assert_int_equal(strlen(files.at[2].hash), 64);
    qn_hub_files_free(&files);
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{" SHA "}",
        "{" SHA ", \"siblings\": {}}",
        "{" SHA ", \"siblings\": [1]}",
        "{" SHA ", \"siblings\": [{}]}",
        "{" SHA ", \"siblings\": [{\"rfilename\": 1}]}",
        "{" SHA ", \"siblings\": [{\"rfilename\": \"../x.gguf\"}]}",
        "{" SHA ", \"siblings\": [{\"rfilename\": \"x\\u0000y.gguf\"}]}",
        "{" SHA ", \"siblings\": [{\"rfilename\": \"x\"}, {\"rfilename\": \"x\"}]}",
        "{" SHA ", " SHA ", \"siblings\": []}",
        "{\"sha\": \"../../..\", \"siblings\": []}",
        "{\"sha\": 1, \"siblings\": []}",
        "{" SHA ", \"siblings\": []",
        "{" SHA ", \"siblings\": []} x",
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        label("%s", bad[i]);
        assert_int_equal(parse(bad[i], &files), QN_ERR_FORMAT);
        qn_hub_files_free(&files);
    }
}

TEST(test_answer_bounds)
{
    qn_hub_files files;
    static char json[200];
    for (size_t depth = 31; depth <= 33; depth++) {
        memset(json, '[', depth);
        memset(json + depth, ']', depth);
        assert_int_equal(qn_hub_files_parse(json, 2 * depth, &files), QN_ERR_FORMAT);
        assert_int_equal(strstr(qn_error_text(), "nested") != NULL, depth > 32);
        qn_hub_files_free(&files);
    }
    assert_ok(parse("{" SHA ", \"x\": \"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[\", \"siblings\": []}",
                    &files));
    qn_hub_files_free(&files);
    assert_int_equal(qn_hub_files_parse(json, QN_HUB_ANSWER_MAX + 1, &files), QN_ERR_FORMAT);
}

/* ---- Headers ---- */

TEST(test_headers)
{
    qn_hub_response r = { .status = 0 };
    static const char *const lines[] = { "X-Repo-Commit: abc \r\n",
                                         "ETAG:W/\"e1\"\r\n",
                                         "x-linked-etag: \"e2\"",
                                         "Content-Range : no",
                                         "content-range:\tbytes 1-2/3",
                                         "X-Error-Code",
                                         ":",
                                         "" };
    for (size_t i = 0; i < COUNT(lines); i++)
        qn_hub_header(&r, lines[i], strlen(lines[i]));
    assert_string_equal(r.commit, "abc");
    assert_string_equal(r.etag, "e1");
    assert_string_equal(r.linked_etag, "e2");
    assert_string_equal(r.range, "bytes 1-2/3");
    assert_string_equal(r.error_code, "");
    char line[1000] = "X-Error-Message: ";
    memset(line + 17, 'm', sizeof line - 17);
    qn_hub_header(&r, line, sizeof line);
    assert_int_equal(strlen(r.error_message), QN_HUB_HEADER_SIZE - 1);
}

TEST(test_ranges)
{
    static const char *const bad[] = { "",
                                       "bytes",
                                       "bytes ",
                                       "bytes 0-1",
                                       "bytes 0-1/",
                                       "bytes 0-1/*",
                                       "bytes */2",
                                       "bytes -1-1/2",
                                       "bytes 0-2/2",
                                       "bytes 1-0/2",
                                       "bytes 0-1/2 ",
                                       "bytes 0-1/2x",
                                       "bytes +0-1/2",
                                       "bytes 0-1/-2",
                                       "bytes  0-1/2",
                                       "items 0-1/2",
                                       "bytes 0-1/17592186044417",
                                       "bytes 18446744073709551616-1/2",
                                       "bytes 0-18446744073709551617/18446744073709551618",
                                       "bytes 0x0-1/2" };
    qn_hub_range range = { 7, 8, 9 };
    for (size_t i = 0; i < COUNT(bad); i++) {
        label("%s", bad[i]);
        assert_false(qn_hub_range_parse(bad[i], &range));
        assert_true(range.first == 7 && range.last == 8 && range.total == 9);
    }
    assert_true(qn_hub_range_parse("Bytes 10-17592186044415/17592186044416", &range));
    assert_true(range.first == 10 && range.last == QN_HUB_SIZE_MAX - 1 && range.total == QN_HUB_SIZE_MAX);
    uint64_t size = 7;
    assert_false(qn_hub_size_parse("", &size) || qn_hub_size_parse("-1", &size) || qn_hub_size_parse("1 ", &size) ||
                 qn_hub_size_parse("17592186044417", &size) || qn_hub_size_parse("18446744073709551617", &size));
    assert_int_equal(size, 7);
    assert_true(qn_hub_size_parse("0017592186044416", &size) && size == QN_HUB_SIZE_MAX);
}
