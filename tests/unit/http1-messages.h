/* http1-messages.h - requests that a strict reader refuses, each with the status it is refused with, and requests that it
 * accepts. Used by the codec's tests and again over a real connection. */
#ifndef HUTCH_TESTS_UNIT_HTTP1_MESSAGES_H
#define HUTCH_TESTS_UNIT_HTTP1_MESSAGES_H

#include <stddef.h>

struct message {
    const char *name;
    const char *text;
    size_t n;
    unsigned status; /* of the refusal; 0 for accepted ones */
};
#define MSG(name, text, status)              \
    {                                        \
        name, text, sizeof(text) - 1, status \
    }
#define H       "Host: a\r\n"
#define POST    "POST /x HTTP/1.1\r\n" H
#define CHUNKED POST "Transfer-Encoding: chunked\r\n"

static const struct message malformed[] = {
    /* The request line. */
    MSG("no version (HTTP/0.9)", "GET /\r\n\r\n", 400),
    MSG("two spaces after the method", "GET  / HTTP/1.1\r\n" H "\r\n", 400),
    MSG("two spaces before the version", "GET /  HTTP/1.1\r\n" H "\r\n", 400),
    MSG("tab after the method", "GET\t/ HTTP/1.1\r\n" H "\r\n", 400),
    MSG("space at the end of the line", "GET / HTTP/1.1 \r\n" H "\r\n", 400),
    MSG("leading space", " GET / HTTP/1.1\r\n" H "\r\n", 400),
    MSG("leading empty line", "\r\nGET / HTTP/1.1\r\n" H "\r\n", 400),
    MSG("method with a separator", "GE(T / HTTP/1.1\r\n" H "\r\n", 400),
    MSG("method too long", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFGH / HTTP/1.1\r\n" H "\r\n", 400),
    MSG("empty target", "GET  HTTP/1.1\r\n" H "\r\n", 400),
    MSG("target without slash", "GET x HTTP/1.1\r\n" H "\r\n", 400),
    MSG("target with a fragment", "GET /a#b HTTP/1.1\r\n" H "\r\n", 400),
    MSG("control character in the target",
        "GET /a\x01"
        "b HTTP/1.1\r\n" H "\r\n",
        400),
    MSG("NUL in the target", "GET /a\0b HTTP/1.1\r\n" H "\r\n", 400),
    MSG("byte above 127 in the target", "GET /\xc3\xa4 HTTP/1.1\r\n" H "\r\n", 400),
    MSG("asterisk for GET", "GET * HTTP/1.1\r\n" H "\r\n", 400),
    MSG("authority form for GET", "GET a:80 HTTP/1.1\r\n" H "\r\n", 400),
    MSG("absolute target with a user", "GET http://u@a/ HTTP/1.1\r\n" H "\r\n", 400),
    MSG("absolute target with another host", "GET http://b/ HTTP/1.1\r\n" H "\r\n", 400),
    MSG("version in lower case", "GET / http/1.1\r\n" H "\r\n", 400),
    MSG("version of another protocol", "GET / HTTPS/1.1\r\n" H "\r\n", 400),
    MSG("version with two digits", "GET / HTTP/1.10\r\n" H "\r\n", 400),
    MSG("version 2.0", "GET / HTTP/2.0\r\n" H "\r\n", 505),
    MSG("version 1.2", "GET / HTTP/1.2\r\n" H "\r\n", 505),
    /* Line ends. */
    MSG("LF only", "GET / HTTP/1.1\nHost: a\n\n", 400),
    MSG("LF in the request line only", "GET / HTTP/1.1\n" H "\r\n", 400),
    MSG("LF for the last line", "GET / HTTP/1.1\r\n" H "\n", 400),
    MSG("CR only", "GET / HTTP/1.1\rHost: a\r\r", 400),
    MSG("CR inside a value", POST "X: a\rb\r\n\r\n", 400),
    MSG("CR CR LF", POST "X: a\r\r\n\r\n", 400),
    /* Fields. */
    MSG("space before the colon", POST "X : a\r\n\r\n", 400),
    MSG("folded field", POST "X: a\r\n b\r\n\r\n", 400),
    MSG("first field folded", "POST / HTTP/1.1\r\n X: a\r\n" H "\r\n", 400),
    MSG("empty name", POST ": a\r\n\r\n", 400),
    MSG("no colon", POST "X\r\n\r\n", 400),
    MSG("separator in a name", POST "X(: a\r\n\r\n", 400),
    MSG("byte above 127 in a name", POST "X\xff: a\r\n\r\n", 400),
    MSG("NUL in a value", POST "X: a\0b\r\n\r\n", 400),
    MSG("DEL in a value", POST "X: a\x7f\r\n\r\n", 400),
    MSG("NUL in a name", POST "X\0: a\r\n\r\n", 400),
    /* Host. */
    MSG("no host", "GET / HTTP/1.1\r\n\r\n", 400),
    MSG("two hosts", "GET / HTTP/1.1\r\n" H H "\r\n", 400),
    MSG("empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    MSG("host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    MSG("host with a user", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    MSG("host with a bad port", "GET / HTTP/1.1\r\nHost: a:8x\r\n\r\n", 400),
    MSG("list of hosts", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    /* Length of the body. */
    MSG("length and chunked", CHUNKED "Content-Length: 5\r\n\r\n0\r\n\r\n", 400),
    MSG("chunked and length", POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    MSG("two different lengths", POST "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    MSG("two equal lengths", POST "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400),
    MSG("list of lengths", POST "Content-Length: 1, 1\r\n\r\na", 400),
    MSG("length with a sign", POST "Content-Length: +1\r\n\r\na", 400),
    MSG("negative length", POST "Content-Length: -1\r\n\r\na", 400),
    MSG("hexadecimal length", POST "Content-Length: 0x1\r\n\r\na", 400),
    MSG("empty length", POST "Content-Length:\r\n\r\n", 400),
    MSG("length that wraps around", POST "Content-Length: 18446744073709551617\r\n\r\na", 400),
    MSG("length with a space inside", POST "Content-Length: 1 1\r\n\r\na", 400),
    MSG("chunked twice", POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
    MSG("two transfer-encodings", CHUNKED "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    MSG("gzip, then chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    MSG("chunked, then identity", POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
    MSG("unknown transfer-encoding", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    MSG("quoted transfer-encoding", POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 501),
    MSG("vertical tab before chunked",
        POST "Transfer-Encoding: \x0b"
             "chunked\r\n\r\n0\r\n\r\n",
        400),
    MSG("chunked in HTTP/1.0", "POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    MSG("unknown expectation", POST "Expect: 200-ok\r\n\r\n", 417),
    /* Chunks. */
    MSG("no size", CHUNKED "\r\n\r\nabc\r\n0\r\n\r\n", 400),
    MSG("size with 0x", CHUNKED "\r\n0x3\r\nabc\r\n0\r\n\r\n", 400),
    MSG("size with a sign", CHUNKED "\r\n-3\r\nabc\r\n0\r\n\r\n", 400),
    MSG("size with a space before", CHUNKED "\r\n 3\r\nabc\r\n0\r\n\r\n", 400),
    MSG("size with a space behind", CHUNKED "\r\n3 \r\nabc\r\n0\r\n\r\n", 400),
    MSG("size that wraps around", CHUNKED "\r\n10000000000000003\r\nabc\r\n0\r\n\r\n", 400),
    MSG("LF behind the size", CHUNKED "\r\n3\nabc\r\n0\r\n\r\n", 400),
    MSG("LF inside an extension", CHUNKED "\r\n3;a\nabc\r\n0\r\n\r\n", 400),
    MSG("CR behind the size", CHUNKED "\r\n3\rabc\r\n0\r\n\r\n", 400),
    MSG("bytes that are too many", CHUNKED "\r\n3\r\nabcd\r\n0\r\n\r\n", 400),
    MSG("LF behind the bytes", CHUNKED "\r\n3\r\nabc\n0\r\n\r\n", 400),
    MSG("wrong end of a chunk", CHUNKED "\r\n3\r\nabcXX0\r\n\r\n", 400),
    MSG("trailer without colon", CHUNKED "\r\n0\r\nx\r\n\r\n", 400),
    MSG("folded trailer", CHUNKED "\r\n0\r\nx: a\r\n b\r\n\r\n", 400),
    MSG("LF behind a trailer", CHUNKED "\r\n0\r\nx: a\n\r\n", 400),
    MSG("NUL in a trailer", CHUNKED "\r\n0\r\nx: a\0\r\n\r\n", 400),
};

static const struct message wellformed[] = {
    MSG("plain", "GET / HTTP/1.1\r\n" H "\r\n", 0),
    MSG("unknown method", "BREW /pot HTTP/1.1\r\n" H "\r\n", 0),
    MSG("query", "GET /a/b?c=d&e=%2F? HTTP/1.1\r\n" H "\r\n", 0),
    MSG("absolute target", "GET http://a/b?c HTTP/1.1\r\n" H "\r\n", 0),
    MSG("absolute target without path", "GET http://a?c HTTP/1.1\r\n" H "\r\n", 0),
    MSG("asterisk", "OPTIONS * HTTP/1.1\r\n" H "\r\n", 0),
    MSG("no space after colon", "GET / HTTP/1.1\r\nHost:a\r\nX:b\r\n\r\n", 0),
    MSG("spaces around a value", "GET / HTTP/1.1\r\n" H "X: \t b c \t\r\n\r\n", 0),
    MSG("empty value", "GET / HTTP/1.1\r\n" H "X:\r\n\r\n", 0),
    MSG("byte above 127 in a value", "GET / HTTP/1.1\r\n" H "X: \xc3\xa4\r\n\r\n", 0),
    MSG("IPv6 host", "GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 0),
    MSG("HTTP/1.0 without host", "GET / HTTP/1.0\r\n\r\n", 0),
    MSG("length", POST "Content-Length: 5\r\n\r\nhello", 0),
    MSG("zero length", POST "Content-Length: 0\r\n\r\n", 0),
    MSG("chunked", CHUNKED "\r\n5\r\nhello\r\n0\r\n\r\n", 0),
    MSG("chunked in capitals", POST "Transfer-Encoding: CHUNKED\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 0),
    MSG("chunks with extensions", CHUNKED "\r\n2;a=b;c=\"d\"\r\nhe\r\n003\r\nllo\r\n00\r\n\r\n", 0),
    MSG("trailers", CHUNKED "\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\ny:\r\n\r\n", 0),
};
#undef H
#undef POST
#undef CHUNKED

#endif
