/* A server on loopback whose answers come from an input, for clients that read them. A thread accepts one connection
 * after another, sends each one answer, and closes it. */
#ifndef QN_TESTS_HOSTILE_SERVER_H
#define QN_TESTS_HOSTILE_SERVER_H

#include "fuzz.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <strings.h>
#include <sys/socket.h>

enum { HOSTILE_SEPARATOR = 0x1e, HOSTILE_MAX_REQUEST = 1 << 20, HOSTILE_MAX_ANSWER = 1 << 20, HOSTILE_SECONDS = 5 };

struct answer {
    char *text;
    size_t n;
};

struct hostile_server {
    /* Makes the answer to a request from an item of the script, which may be empty. */
    void (*make)(const char *request, const uint8_t *item, size_t n, struct answer *answer);
    int fd;
    char url[64];
    pthread_mutex_t lock; /* guards the fields below */
    const uint8_t *script;
    size_t size, at;
    char request[HOSTILE_MAX_REQUEST + 1]; /* used by the thread only, as the next field */
    char text[HOSTILE_MAX_ANSWER];
};

static inline void answer_add(struct answer *answer, const void *data, size_t n)
{
    n = n < HOSTILE_MAX_ANSWER - answer->n ? n : HOSTILE_MAX_ANSWER - answer->n;
    if (n)
        memcpy(answer->text + answer->n, data, n);
    answer->n += n;
}

static inline void answer_text(struct answer *answer, const char *text)
{
    answer_add(answer, text, strlen(text));
}

/* Answers with a status, headers and a body of known length. */
static inline void answer_body(struct answer *answer, const char *status, const char *type, const void *body, size_t n)
{
    char head[300];
    snprintf(head, sizeof head, "HTTP/1.1 %.40s\r\nContent-Type: %.100s\r\nContent-Length: %zu\r\n\r\n", status, type,
             n);
    answer_text(answer, head);
    answer_add(answer, body, n);
}

/* The same, in chunks of `step` bytes. */
static inline void answer_chunked(struct answer *answer, const char *status, const char *type, const uint8_t *body,
                                  size_t n, size_t step)
{
    char head[300];
    snprintf(head, sizeof head, "HTTP/1.1 %.40s\r\nContent-Type: %.100s\r\nTransfer-Encoding: chunked\r\n\r\n", status,
             type);
    answer_text(answer, head);
    for (size_t at = 0, piece; at < n; at += piece) {
        piece = n - at < step ? n - at : step;
        snprintf(head, sizeof head, "%zx\r\n", piece);
        answer_text(answer, head);
        answer_add(answer, body + at, piece);
        answer_text(answer, "\r\n");
    }
    answer_text(answer, "0\r\n\r\n");
}

/* Reads the whole request, terminated. False: the client has closed the connection. */
static inline bool hostile_read(struct hostile_server *s, int fd)
{
    size_t n = 0, need = SIZE_MAX;
    while (n < need && n < HOSTILE_MAX_REQUEST) {
        const ssize_t got = recv(fd, s->request + n, HOSTILE_MAX_REQUEST - n, 0);
        if (got <= 0)
            return false;
        n += (size_t)got;
        s->request[n] = '\0';
        const char *end = strstr(s->request, "\r\n\r\n"), *length = strcasestr(s->request, "\r\ncontent-length:");
        if (end)
            need = (size_t)(end + 4 - s->request) + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
    }
    return true;
}

static inline void hostile_answer(struct hostile_server *s, int fd)
{
    struct answer answer = { .text = s->text };
    pthread_mutex_lock(&s->lock);
    if (s->at >= s->size)
        s->at = 0;
    const uint8_t *item = s->script + s->at, *end = s->size ? memchr(item, HOSTILE_SEPARATOR, s->size - s->at) : NULL;
    const size_t n = end ? (size_t)(end - item) : s->size - s->at;
    s->at += n + 1;
    s->make(s->request, item, n, &answer);
    pthread_mutex_unlock(&s->lock);
    for (size_t sent = 0; sent < answer.n;) {
        const ssize_t now = send(fd, answer.text + sent, answer.n - sent, MSG_NOSIGNAL);
        if (now <= 0)
            return;
        sent += (size_t)now;
    }
}

static inline void *hostile_run(void *server)
{
    struct hostile_server *s = server;
    const struct timeval limit = { .tv_sec = HOSTILE_SECONDS };
    for (int fd; (fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (hostile_read(s, fd))
            hostile_answer(s, fd);
        close(fd);
    }
    return NULL;
}

static inline struct hostile_server *hostile_start(void (*make)(const char *, const uint8_t *, size_t, struct answer *))
{
    struct hostile_server *s = calloc(1, sizeof *s);
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    pthread_t thread;
    sigset_t all, before;
    require(s && !pthread_mutex_init(&s->lock, NULL), "memory");
    s->make = make;
    s->script = (const uint8_t *)"";
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(s->fd >= 0 && !bind(s->fd, (struct sockaddr *)&address, sizeof address) && !listen(s->fd, 64) &&
                !getsockname(s->fd, (struct sockaddr *)&address, &length),
            "it listens");
    snprintf(s->url, sizeof s->url, "http://127.0.0.1:%u", (unsigned)ntohs(address.sin_port));
    sigfillset(&all); /* libFuzzer uses SIGALRM */
    require(!pthread_sigmask(SIG_SETMASK, &all, &before) && !pthread_create(&thread, NULL, hostile_run, s) &&
                !pthread_detach(thread) && !pthread_sigmask(SIG_SETMASK, &before, NULL),
            "it runs");
    return s;
}

/* The items of a script answer the requests in turn, repeatedly. */
static inline void hostile_script(struct hostile_server *s, const uint8_t *data, size_t size)
{
    pthread_mutex_lock(&s->lock);
    s->script = data;
    s->size = size;
    s->at = 0;
    pthread_mutex_unlock(&s->lock);
}

#endif
