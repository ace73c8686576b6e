/* HTTP of a whole server on loopback: an input is what a client sends, in pieces. Requests are counted by a parser of
 * RFC 9112. Each gets an answer, in order, and there is at most one more, which refuses the rest and ends the
 * connection: no part of a request is taken for another request. Answers are well-formed, and the server survives.
 *
 * An input is the bytes that the client sends; a byte 0xff is not sent, and the bytes after it are sent a moment
 * later. */
#include "fuzz.h"

#include "cli/serve_model.h"
#include "serve/server.h"

#include "cli/cli.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>

enum {
    MAX_INPUT = 60000,
    MAX_ANSWERS = 64,
    MAX_CUTS = 8,
    CUT_MICROSECONDS = 300,
    ANSWER_MS = 8000,
    REST_MS = 30,
    LONGEST = 4 << 20,
    HEALTH_EVERY = 64
};

static qn_server *server;
static struct sockaddr_in address;

/* ---- The server ---- */

static void set_up(void)
{
    char path[4096];
    qn_model *model;
    source_path("tests/golden/agent.gguf", path);
    const qn_args args = { .quiet = true,
                           .context = 64,
                           .sequences = 4,
                           .max_queued = 32,
                           .max_tokens = 4,
                           .sampling = { .top_p = 1, .repeat_penalty = 1 } };
    const qn_server_params params = { .host = "127.0.0.1",
                                      .max_header = 16 << 10,
                                      .max_body = 64 << 10,
                                      .max_connections = 1000, /* a server without processor time does not notice at
                                                                  once that they have ended */
                                      .max_per_address = 1000,
                                      .header_seconds = 60,
                                      .body_seconds = 60,
                                      .idle_seconds = 60,
                                      .n_workers = 1 };
    qn_registered registered = { .name = "m" };
    require(qn_model_load(path,
                          &(qn_model_params){
                              .size = sizeof(qn_model_params), .device = "cpu", .n_threads = 1, .memory = 64 << 20 },
                          &model) == QN_OK,
            "the model loads");
    require(qn_serve_prepare(&args, path, model, &registered) == QN_OK, "it has a scheduler");
    require(qn_server_create(&params, &server) == QN_OK && qn_server_add(server, &registered) == QN_OK,
            "the server runs");
    address = (struct sockaddr_in){ .sin_family = AF_INET,
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                    .sin_port = htons((uint16_t)atoi(strrchr(qn_server_url(server), ':') + 1)) };
}

/* ---- Requests, by parsers of RFC 9112 ---- */

/* The strict parser accepts only what all readers agree on. The lenient one also accepts what a server may, because
 * its framing is unambiguous: bare line feeds, odd bytes where the framing does not depend on them. */

struct request {
    bool is_head, ends; /* ends: the connection ends after its answer */
};

struct requests {
    struct request at[MAX_ANSWERS];
    size_t n, n_strict; /* the first n_strict are unambiguous */
    bool has_rest;      /* there are bytes after all of them */
    /* A block that came with the request before it and contains a zero, which libmicrohttpd takes for the end of a
     * line, or not. Proxies refuse it (RFC 9110, 5.5). The server may answer the requests that it reads there. */
    bool is_open;
};

struct framing {
    bool is_strict, is_old;
    bool has_length, is_chunked, closes, keeps;
    uint64_t length;
};

static bool is_token(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("!#$%&'*+-.^_`|~", text[i]))
            return false;
    return n > 0 && !memchr(text, 0, n);
}

/* The length of the line without its end; *next follows it. SIZE_MAX: there is no line that may be read. */
static size_t line_length(const char *at, const char *end, struct framing *f, const char **next)
{
    const char *newline = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    if (!newline)
        return SIZE_MAX;
    const bool has_return = newline > at && newline[-1] == '\r';
    const size_t n = (size_t)(newline - at) - has_return;
    *next = newline + 1;
    f->is_strict = f->is_strict && has_return;
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)at[i] < ' ' && at[i] != '\t') || (unsigned char)at[i] >= 0x7f)
            f->is_strict = false;
    /* For a block that came with the request before it, libmicrohttpd does not report zeros at the end of its last
     * lines, and takes a line of zeros or a colon for the empty line. */
    size_t n_text = n;
    while (n_text && !at[n_text - 1])
        n_text--;
    return memchr(at, 0, n_text) || memchr(at, '\r', n) ? SIZE_MAX : n_text && !(n_text == 1 && *at == ':') ? n : 0;
}

/* METHOD SP TARGET SP HTTP/1.1 */
static bool parse_first_line(const char *line, size_t n, struct request *request, struct framing *f)
{
    const char *space = memchr(line, ' ', n), *end = line + n, *last = memrchr(line, ' ', n);
    request->is_head = n > 5 && !memcmp(line, "HEAD", 4) && (line[4] == ' ' || line[4] == '\t');
    f->is_old = n >= 8 && !memcmp(end - 8, "HTTP/1.0", 8);
    if (!space || last <= space + 1 || end - last != 9 || memcmp(last + 1, "HTTP/1.", 7) != 0 ||
        (end[-1] != '0' && end[-1] != '1') || !is_token(line, (size_t)(space - line)))
        f->is_strict = false;
    for (const char *c = space ? space + 1 : end; c < last; c++)
        if (*c <= ' ' || *c >= 0x7f)
            f->is_strict = false;
    return n > 0;
}

static bool is_name(const char *name, size_t n, const char *expected)
{
    return n == strlen(expected) && !strncasecmp(name, expected, n);
}

/* Parses a value on which the framing depends. False: readers may disagree about it. */
static bool parse_framing(const char *name, size_t n_name, const char *value, size_t n, struct framing *f)
{
    if (is_name(name, n_name, "content-length")) {
        if (!n || n > 9 || strspn(value, "0123456789") < n || f->has_length)
            return false;
        f->has_length = true;
        f->length = strtoull(value, NULL, 10);
    } else if (is_name(name, n_name, "transfer-encoding")) {
        if (f->is_chunked || n != 7 || strncasecmp(value, "chunked", 7) != 0)
            return false;
        f->is_chunked = true;
    } else if (is_name(name, n_name, "connection")) {
        f->closes = f->closes || (n == 5 && !strncasecmp(value, "close", 5));
        f->keeps = f->keeps || (n == 10 && !strncasecmp(value, "keep-alive", 10));
        f->is_strict = f->is_strict && ((n == 5 && f->closes) || (n == 10 && f->keeps));
    } else if (is_name(name, n_name, "upgrade") || is_name(name, n_name, "expect")) {
        f->is_strict = false;
    }
    return true;
}

static bool parse_header(const char *line, size_t n, struct framing *f)
{
    const char *colon = memchr(line, ':', n);
    if (!colon || colon == line || *line == ' ' || *line == '\t')
        return false;
    size_t n_name = (size_t)(colon - line);
    const char *value = colon + 1, *end = line + n;
    f->is_strict = f->is_strict && is_token(line, n_name);
    while (line[n_name - 1] == ' ' || line[n_name - 1] == '\t')
        if (!--n_name)
            return false;
    if (line + n_name < colon) /* some readers take it for this header */
        return !is_name(line, n_name, "content-length") && !is_name(line, n_name, "transfer-encoding");
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return parse_framing(line, n_name, value, (size_t)(end - value), f);
}

/* The end of a chunked body, or NULL. */
static const char *skip_chunks(const char *at, const char *end, struct framing *f)
{
    for (const char *next;; at = next) {
        size_t n = line_length(at, end, f, &next);
        const char *extension = n == SIZE_MAX ? NULL : memchr(at, ';', n);
        if (n == SIZE_MAX)
            return NULL;
        f->is_strict = f->is_strict && !extension;
        n = extension ? (size_t)(extension - at) : n;
        if (!n || n > 6 || strspn(at, "0123456789abcdefABCDEF") < n)
            return NULL;
        const size_t size = strtoul(at, NULL, 16);
        if (!size) {
            while ((n = line_length(next, end, f, &next)) != 0) { /* trailers */
                f->is_strict = false;
                if (n == SIZE_MAX)
                    return NULL;
            }
            return next;
        }
        if ((size_t)(end - next) < size)
            return NULL;
        next += size;
        if (line_length(next, end, f, &next) != 0)
            return NULL;
    }
}

/* The end of a request, or NULL if there is none. */
static const char *parse_request(const char *at, const char *end, struct request *request, bool *is_strict)
{
    struct framing f = { .is_strict = true };
    const char *next;
    size_t n;
    for (; (n = line_length(at, end, &f, &next)) == 0; at = next) /* empty lines before the request */
        f.is_strict = false;
    if (n == SIZE_MAX || !parse_first_line(at, n, request, &f))
        return NULL;
    for (at = next; (n = line_length(at, end, &f, &next)) != 0; at = next)
        if (n == SIZE_MAX || !parse_header(at, n, &f))
            return NULL;
    at = next;
    f.is_strict = f.is_strict && !(f.has_length && f.is_chunked) && !(f.is_chunked && f.is_old);
    request->ends = f.closes || (f.is_old && !f.keeps);
    *is_strict = f.is_strict;
    if (f.is_chunked)
        at = skip_chunks(at, end, &f);
    else
        at = (size_t)(end - at) >= f.length ? at + f.length : NULL;
    *is_strict = f.is_strict && at;
    return at;
}

static struct requests parse_requests(const char *text, size_t n)
{
    struct requests r = { .n = 0 };
    const char *at = text, *end = text + n;
    while (at < end && r.n < MAX_ANSWERS && !(r.n && r.at[r.n - 1].ends)) {
        bool is_strict;
        const char *next = parse_request(at, end, &r.at[r.n], &is_strict);
        if (!next)
            break;
        r.n_strict += is_strict && r.n_strict == r.n;
        r.n++;
        at = next;
    }
    r.has_rest = at < end;
    r.is_open = r.n && memchr(at, 0, (size_t)(end - at));
    return r;
}

/* ---- Answers ---- */

struct answers {
    char *text;
    size_t n, capacity;
    size_t parsed, count; /* bytes of whole answers, and their number */
    bool closes;          /* the last one announces the end of the connection */
    bool has_ended;
};

/* The length of the answer at the beginning of the text; 0 if it is not complete. */
static size_t answer_length(const char *text, size_t n, bool is_head, bool has_ended, bool *closes)
{
    const char *head_end = memmem(text, n, "\r\n\r\n", 4);
    if (!head_end) {
        require(n < 64 << 10, "headers of answers are short");
        return 0;
    }
    const size_t head = (size_t)(head_end + 4 - text);
    char *headers = strndup(text, head);
    require(headers, "memory");
    require(strlen(headers) == head && !strncmp(headers, "HTTP/1.1 ", 9), "it begins with a status");
    const int status = atoi(headers + 9);
    require(status >= 100 && status < 600 && headers[12] == ' ', "the status is one");
    const char *length = strcasestr(headers, "\r\ncontent-length: "),
               *chunked = strcasestr(headers, "\r\ntransfer-encoding: chunked\r\n");
    require(!length || !chunked, "there is one framing");
    *closes = strcasestr(headers, "\r\nconnection: close\r\n") != NULL;
    size_t need = head;
    if (is_head || status == 204 || status == 304 || status < 200) {
    } else if (length) {
        need += strtoul(length + 18, NULL, 10);
    } else if (chunked) {
        const char *end = skip_chunks(text + head, text + n, &(struct framing){ .is_strict = true });
        need = end ? (size_t)(end - text) : SIZE_MAX;
    } else {
        require(*closes, "a body without a length ends with the connection");
        need = has_ended ? n : SIZE_MAX;
    }
    free(headers);
    if (status == 100 && need <= n) { /* the answer itself follows */
        const size_t rest = answer_length(text + need, n - need, is_head, has_ended, closes);
        return rest ? need + rest : 0;
    }
    return need <= n ? need : 0;
}

/* Whether another answer follows the headers of the one at the beginning of the text. */
static bool has_no_body(const char *text, size_t n)
{
    const char *head_end = memmem(text, n, "\r\n\r\n", 4);
    return head_end && (size_t)(text + n - head_end) >= 4 + 9 && !memcmp(head_end + 4, "HTTP/1.1 ", 9);
}

static void parse_answers(struct answers *a, const struct requests *r)
{
    while (a->parsed < a->n && a->count < MAX_ANSWERS) {
        const char *text = a->text + a->parsed;
        const size_t left = a->n - a->parsed;
        bool closes;
        /* What is left open may be requests, also of HEAD. */
        const bool is_head = a->count < r->n ? r->at[a->count].is_head : r->is_open && has_no_body(text, left);
        const size_t n = answer_length(text, left, is_head, a->has_ended, &closes);
        if (!n)
            return;
        require(!a->closes, "nothing follows an answer that ends the connection");
        a->closes = closes;
        a->parsed += n;
        a->count++;
    }
}

/* Reads for a time, or until the connection ends; then the number of answers is known. */
static void read_some(int fd, struct answers *a, const struct requests *r, int ms)
{
    struct pollfd wait = { .fd = fd, .events = POLLIN };
    if (a->has_ended || TEMP_FAILURE_RETRY(poll(&wait, 1, ms)) <= 0) /* libFuzzer's alarm interrupts it */
        return;
    if (a->n + 65536 > a->capacity) {
        a->capacity = 2 * a->capacity + 65536;
        a->text = realloc(a->text, a->capacity);
        require(a->text && a->n < LONGEST, "answers are short");
    }
    const ssize_t n = recv(fd, a->text + a->n, a->capacity - a->n, 0);
    a->has_ended = n <= 0;
    a->n += n > 0 ? (size_t)n : 0;
    parse_answers(a, r);
}

/* ---- A connection ---- */

static int open_connection(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    const struct linger none = { .l_onoff = 1 }; /* frees the port when the connection is closed */
    int failed = TEMP_FAILURE_RETRY(connect(fd, (struct sockaddr *)&address, sizeof address));
    /* no free port: other connections of this machine use them */
    for (int i = 0; failed && errno == EADDRNOTAVAIL && i < 70; i++) {
        sleep(1);
        failed = TEMP_FAILURE_RETRY(connect(fd, (struct sockaddr *)&address, sizeof address));
    }
    failed = failed && errno != EISCONN; /* an interrupted attempt has continued */
    require(fd >= 0 && !failed, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    return fd;
}

/* False if the server has closed the connection. */
static bool send_all(int fd, const char *text, size_t n, struct answers *a, const struct requests *r)
{
    while (n) {
        const ssize_t sent = send(fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN)
            return false;
        if (sent < 0)
            read_some(fd, a, r, 1);
        text += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

static void send_pieces(int fd, const uint8_t *data, size_t size, struct answers *a, const struct requests *r)
{
    for (size_t at = 0, cuts = 0; at < size;) {
        const uint8_t *cut = memchr(data + at, 0xff, size - at);
        const size_t n = cut ? (size_t)(cut - data) - at : size - at;
        if (!send_all(fd, (const char *)data + at, n, a, r))
            return;
        at += n + 1;
        if (cut && cuts++ < MAX_CUTS)
            usleep(CUT_MICROSECONDS);
    }
}

static void check_health(void)
{
    static const char text[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    const struct requests r = parse_requests(text, sizeof text - 1);
    struct answers a = { 0 };
    const int fd = open_connection();
    require(send_all(fd, text, sizeof text - 1, &a, &r), "the server reads");
    for (int i = 0; i < 10 && !a.has_ended; i++)
        read_some(fd, &a, &r, ANSWER_MS);
    require(a.count == 1 && a.closes && !strncmp(a.text, "HTTP/1.1 200 ", 13), "the server is healthy");
    free(a.text);
    close(fd);
}

static void report(const struct requests *r, const struct answers *a)
{
    if ((a->count <= r->n + r->has_rest || r->is_open) && (a->count >= r->n_strict || (a->has_ended && a->closes)))
        return;
    dprintf(report_fd, "%zu requests or %zu%s, %zu answers%s%s:\n%.*s\n", r->n_strict, r->n,
            r->has_rest ? " and a rest" : "", a->count, a->closes ? ", the last of which closes" : "",
            a->has_ended ? ", closed" : "", (int)(a->n < 3000 ? a->n : 3000), a->text);
    require(false, "there is one answer for each request");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static size_t n_runs;
    if (!server)
        set_up();
    if (size > MAX_INPUT)
        return 0;
    char *text = malloc(size + 1);
    size_t n = 0;
    require(text, "memory");
    for (size_t i = 0; i < size; i++)
        if (data[i] != 0xff)
            text[n++] = (char)data[i];
    text[n] = '\0';
    const struct requests r = parse_requests(text, n);
    struct answers a = { 0 };
    const int fd = open_connection();
    send_pieces(fd, data, size, &a, &r);
    for (size_t before = SIZE_MAX; a.count < r.n_strict && !a.has_ended && before != a.n;) {
        before = a.n;
        read_some(fd, &a, &r, ANSWER_MS);
    }
    shutdown(fd, SHUT_WR);
    for (size_t before = SIZE_MAX; !a.has_ended && before != a.n;) {
        before = a.n;
        read_some(fd, &a, &r, r.has_rest || r.n > r.n_strict ? REST_MS : ANSWER_MS); /* the server waits for the other
                                                                                        half of a request */
    }
    report(&r, &a);
    close(fd);
    free(a.text);
    free(text);
    if (++n_runs % HEALTH_EVERY == 1)
        check_health();
    return 0;
}
