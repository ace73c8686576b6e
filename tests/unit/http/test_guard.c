/* What a server refuses by headers and paths. */
#include "helper_assert.h"

#include "http/guard.h"

TEST(hosts)
{
    static const char *const allowed[] = { "quern.example", "gpu-box" };
    static const char *const good[] = { "127.0.0.1",  "127.0.0.1:8080", "10.1.2.3:0",         "255.255.255.255:65535",
                                        "[::1]",      "[::1]:8080",     "[fe80::1:2]:80",     "[::ffff:127.0.0.1]",
                                        "localhost",  "localhost:1",    "LocalHost:8080",     "quern.example",
                                        "gpu-box:80", "GPU-BOX",        "QUERN.example:65535" };
    static const char *const bad[] = { "",
                                       ":8080",
                                       "evil.example",
                                       "localhost.evil.example",
                                       "evil.localhost",
                                       "127.0.0.1.evil.example",
                                       "127.1",
                                       "2130706433",
                                       "0x7f.0.0.1",
                                       "127.0.0.01",
                                       "127.0.0.256",
                                       "127.0.0.1:",
                                       "127.0.0.1:65536",
                                       "127.0.0.1:99999999999",
                                       "127.0.0.1:8o",
                                       "127.0.0.1:-1",
                                       "127.0.0.1: 80",
                                       " 127.0.0.1",
                                       "127.0.0.1 ",
                                       "127.0.0.1,evil.example",
                                       "localhost:80:80",
                                       "localhost/",
                                       "user@localhost",
                                       "::1",
                                       "[::1",
                                       "[]",
                                       "[127.0.0.1]",
                                       "[localhost]",
                                       "[quern.example]",
                                       "[::1]x",
                                       "[::1%25lo]",
                                       "[::1]:",
                                       "quern.example.",
                                       "quern",
                                       "quern.examplex",
                                       "[1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb:cccc:dddd:eeee]" };
    for (size_t i = 0; i < COUNT(good); i++) {
        label("Host: %s", good[i]);
        assert_true(qn_guard_host(good[i], allowed, COUNT(allowed)));
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        label("Host: %s", bad[i]);
        assert_false(qn_guard_host(bad[i], allowed, COUNT(allowed)));
    }
    assert_false(qn_guard_host(NULL, allowed, COUNT(allowed)));
    assert_false(qn_guard_host("quern.example", NULL, 0));
    assert_true(qn_guard_listed_host(allowed[0], allowed, COUNT(allowed)));
    assert_false(qn_guard_listed_host("localhost", allowed, COUNT(allowed)));
    assert_false(qn_guard_listed_host("127.0.0.1:80", allowed, COUNT(allowed)));
}

enum { BOTH = QN_GUARD_HTTP | QN_GUARD_HTTPS };

TEST(origins)
{
    static const char *const listed[] = { "https://chat.example", "http://localhost:3000" }, *const all[] = { "*" };
    static const struct {
        const char *origin, *host;
        bool is_allowed; /* where the server may have both schemes */
    } cases[] = { { NULL, "localhost:8080", true },
                  { NULL, NULL, true },
                  { "http://localhost:8080", "localhost:8080", true },
                  { "http://LOCALHOST:8080", "localhost:8080", true },
                  { "https://127.0.0.1:8080", "127.0.0.1:8080", true },
                  { "http://[::1]:8080", "[::1]:8080", true },
                  { "http://box", "box", true },
                  { "http://box", "box:80", true },
                  { "https://box:443", "box", true },
                  { "https://chat.example", "localhost:8080", true },
                  { "HTTPS://chat.EXAMPLE", "localhost:8080", true },
                  { "http://localhost:3000", "localhost:8080", true },
                  { "http://chat.example", "localhost:8080", false },
                  { "https://chat.example:8443", "localhost:8080", false },
                  { "https://chat.example.evil.example", "localhost:8080", false },
                  { "http://localhost:8081", "localhost:8080", false },
                  { "http://localhost", "localhost:8080", false },
                  { "https://box", "box:80", false },
                  { "http://127.0.0.1:8080", "localhost:8080", false },
                  { "http://evil.example", "localhost:8080", false },
                  { "http://localhost:8080", NULL, false },
                  { "http://localhost:8080@evil.example", "localhost:8080", false },
                  { "http://localhost:8080/", "localhost:8080", false },
                  { "null", "localhost:8080", false },
                  { "", "localhost:8080", false },
                  { "localhost:8080", "localhost:8080", false },
                  { "http://", "", false },
                  { "file://localhost:8080", "localhost:8080", false } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("Origin: %s, Host: %s", cases[i].origin ? cases[i].origin : "-", cases[i].host ? cases[i].host : "-");
        assert_int_equal(qn_guard_origin(cases[i].origin, cases[i].host, BOTH, listed, COUNT(listed)),
                         cases[i].is_allowed);
        assert_true(qn_guard_origin(cases[i].origin, cases[i].host, BOTH, all, 1));
    }
    assert_true(qn_guard_origin("https://box", "box", QN_GUARD_HTTPS, listed, COUNT(listed)));
    assert_false(qn_guard_origin("http://box", "box", QN_GUARD_HTTPS, listed, COUNT(listed)));
    assert_true(qn_guard_origin("http://box", "box", QN_GUARD_HTTP, listed, COUNT(listed)));
    assert_false(qn_guard_origin("https://box", "box", QN_GUARD_HTTP, listed, COUNT(listed)));
    assert_true(qn_guard_origin("https://chat.example", "box", QN_GUARD_HTTP, listed, COUNT(listed)));
    assert_true(qn_guard_listed_origin("https://chat.example", listed, COUNT(listed)));
    assert_false(qn_guard_listed_origin("http://localhost:8080", listed, COUNT(listed)));
    assert_false(qn_guard_listed_origin(NULL, all, 1));
}

TEST(types)
{
    static const char *const good[] = { "application/json",
                                        "application/json; charset=utf-8",
                                        "Application/JSON",
                                        "application/json;",
                                        " application/json ",
                                        "application/ld+json",
                                        "application/vnd.x+json;a",
                                        "application/json\t; a=\"b\"",
                                        "text/x+JSON" };
    static const char *const bad[] = { "",
                                       "text/plain",
                                       "text/plain; application/json",
                                       "text/plain; a=+json",
                                       "text/plain+jsonx",
                                       "text/plain, application/json",
                                       "application/json, text/plain",
                                       "application/jsonp",
                                       "application/jso",
                                       "xapplication/json",
                                       "application",
                                       "json",
                                       "/json",
                                       "text/json",
                                       "text/+json",
                                       "application/x-www-form-urlencoded",
                                       "multipart/form-data; boundary=+json",
                                       "application/json x" };
    for (size_t i = 0; i < COUNT(good); i++) {
        label("Content-Type: %s", good[i]);
        assert_true(qn_guard_json(good[i]));
    }
    for (size_t i = 0; i < COUNT(bad); i++) {
        label("Content-Type: %s", bad[i]);
        assert_false(qn_guard_json(bad[i]));
    }
    assert_false(qn_guard_json(NULL));
}

TEST(addresses)
{
    static const struct {
        const char *text;
        bool is_loopback;
    } cases[] = { { "127.0.0.1", true },
                  { "127.255.0.9", true },
                  { "128.0.0.1", false },
                  { "0.0.0.0", false },
                  { "10.0.0.1", false },
                  { "::1", true },
                  { "::", false },
                  { "::2", false },
                  { "fe80::1", false },
                  { "::ffff:127.0.0.2", true },
                  { "::ffff:10.0.0.1", false },
                  { "::127.0.0.1", false },
                  { "7f00::1", false } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_address address;
        label("%s", cases[i].text);
        assert_true(qn_address_read(cases[i].text, strchr(cases[i].text, ':'), &address));
        assert_int_equal(qn_guard_is_loopback(&address), cases[i].is_loopback);
    }
}

TEST(paths)
{
    static const struct {
        const char *path, *decoded; /* NULL: refused */
    } cases[] = { { "/", "/" },
                  { "/v1/models", "/v1/models" },
                  { "/v1/models?limit=%00", "/v1/models" },
                  { "/v1/models/a%20b", "/v1/models/a b" },
                  { "/%76%31", "/v1" },
                  { "/a%C3%a9", "/aé" },
                  { "/...", "/..." },
                  { "/.a/b..", "/.a/b.." },
                  { "//", "//" },
                  { "/a%25b", "/a%b" },
                  { "/a%252e%252e/b", "/a%2e%2e/b" },
                  { "", NULL },
                  { "v1", NULL },
                  { "*", NULL },
                  { "http://localhost/v1", NULL },
                  { "/.", NULL },
                  { "/..", NULL },
                  { "/../etc/passwd", NULL },
                  { "/v1/../..", NULL },
                  { "/v1/./models", NULL },
                  { "/v1/..?", NULL },
                  { "/%2e%2E/etc", NULL },
                  { "/v1/.%2e", NULL },
                  { "/v1/models/a%2Fb%2fc", "/v1/models/a/b/c" },
                  { "/v1/models%2fa", NULL },
                  { "/v1%2fmodels/", NULL },
                  { "/v1/models/..%2f", NULL },
                  { "/v1/models/a%2f.", NULL },
                  { "/v1%2fmodels", NULL },
                  { "/..%2f", NULL },
                  { "/..%5c", NULL },
                  { "/a\\b", NULL },
                  { "/a%00", NULL },
                  { "/a%0d%0aX: y", NULL },
                  { "/a\tb", NULL },
                  { "/a%7f", NULL },
                  { "/%", NULL },
                  { "/%4", NULL },
                  { "/%4g", NULL },
                  { "/%g4", NULL },
                  { "/%ff", NULL },
                  { "/%c0%af", NULL },
                  { "/\xed\xa0\x80", NULL } };
    char out[32];
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("path %s", cases[i].path);
        assert_int_equal(qn_guard_path(cases[i].path, out, sizeof out), cases[i].decoded != NULL);
        if (cases[i].decoded)
            assert_string_equal(out, cases[i].decoded);
    }
    assert_true(qn_guard_path("/123", out, 5));
    assert_false(qn_guard_path("/1234", out, 5));
    assert_false(qn_guard_path("/", out, 1));
}

/* What --cors-origin and --allowed-host take: others could never match. */
TEST(test_values_of_options)
{
    static const char *const origins[] = { "*",
                                           "null",
                                           "http://a",
                                           "https://a.example:8443",
                                           "http://[::1]:3000",
                                           "http://127.0.0.1",
                                           "http://a:443",
                                           "https://a:80",
                                           "chrome-extension://abcdef",
                                           "HTTPS://A.example" },
                             *const no_origins[] = { "",
                                                     "a.example",
                                                     "https://",
                                                     "https:///",
                                                     "https://a/",
                                                     "https://a/b",
                                                     "https://a:",
                                                     "://a",
                                                     "https://a:65536",
                                                     "https://a:8x",
                                                     "https://a:443",
                                                     "HTTP://a:80",
                                                     "http://[::1]:80",
                                                     "https://a:0",
                                                     "https://a b",
                                                     "https://[::1",
                                                     "https://[x]",
                                                     "https://u@a",
                                                     "1http://a",
                                                     "**",
                                                     "https://*.a" },
                             *const hosts[] = { "a", "a.example", "::1", "10.0.0.1", "a_b-c" },
                             *const no_hosts[] = { "", "a:80", "https://a", "a/b", "[::1]", "a b", "*" };
    for (size_t i = 0; i < COUNT(origins); i++) {
        label("origin %s", origins[i]);
        assert_true(qn_guard_is_origin(origins[i]));
    }
    for (size_t i = 0; i < COUNT(no_origins); i++) {
        label("no origin: %s", no_origins[i]);
        assert_false(qn_guard_is_origin(no_origins[i]));
    }
    for (size_t i = 0; i < COUNT(hosts); i++) {
        label("host %s", hosts[i]);
        assert_true(qn_guard_is_host(hosts[i]));
    }
    for (size_t i = 0; i < COUNT(no_hosts); i++) {
        label("no host: %s", no_hosts[i]);
        assert_false(qn_guard_is_host(no_hosts[i]));
    }
}
