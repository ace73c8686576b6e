/* Which clients accept gzip. */
#include "helper_assert.h"

#include "http/encoding.h"

static void check(const char *const *texts, size_t n, bool expected)
{
    for (size_t i = 0; i < n; i++)
        if (qn_encoding_accepts_gzip(texts[i]) != expected)
            fail_msg("'%s' %s gzip", texts[i], expected ? "does not accept" : "accepts");
}

TEST(accepted)
{
    static const char *const texts[] = { "gzip",
                                         "GZip",
                                         "x-gzip",
                                         "gzip, deflate, br, zstd",
                                         "br;q=1.0, gzip;q=0.8, *;q=0.1",
                                         "deflate,gzip",
                                         "gzip;q=0.001",
                                         "gzip ; Q=1.000",
                                         "\tgzip\t;\tq=1 , br",
                                         ",, gzip,",
                                         "*",
                                         "identity, *;q=0.5",
                                         "identity;q=0, gzip",
                                         "gzip;q=1." };
    check(texts, sizeof texts / sizeof *texts, true);
}

TEST(refused)
{
    static const char *const texts[] = { "",
                                         " ",
                                         ",",
                                         "identity",
                                         "br, deflate",
                                         "gzip;q=0",
                                         "gzip;q=0.000",
                                         "gzip;q=0, *",
                                         "*;q=1, gzip;q=0",
                                         "*;q=0",
                                         "gzipped",
                                         "agzip",
                                         "not-gzip",
                                         "gzip;q=2",
                                         "gzip;q=1.5",
                                         "gzip;q=0.0001",
                                         "gzip;q=-1",
                                         "gzip;q=",
                                         "gzip;q",
                                         "gzip;",
                                         "gzip;level=9",
                                         "gzip deflate",
                                         "gzip;q=1;q=0",
                                         "\"gzip\"",
                                         "gzip, \"" };
    check(texts, sizeof texts / sizeof *texts, false);
    assert_false(qn_encoding_accepts_gzip(NULL));
}
