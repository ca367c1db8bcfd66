/* A program on libzmq alone: `zmq_stranger pub|push|sub|pull ENDPOINT COUNT` sends messages of two parts, "t" and
 * their number, or prints the parts of messages, one message a line. It connects. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

int main(int count, char **arguments) {
    if (count != 4) return 2;
    int sends = arguments[1][0] == 'p' && strcmp(arguments[1], "pull");
    int kind = !strcmp(arguments[1], "pub") ? ZMQ_XPUB : sends ? ZMQ_PUSH : !strcmp(arguments[1], "sub") ? ZMQ_SUB : ZMQ_PULL;
    void *context = zmq_ctx_new(), *socket = zmq_socket(context, kind);
    char text[256];
    if (kind == ZMQ_SUB) zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    if (zmq_connect(socket, arguments[2])) return 1;
    if (kind == ZMQ_XPUB) zmq_recv(socket, text, sizeof text, 0); /* somebody has subscribed */
    for (int n = 0; n < atoi(arguments[3]); n++) {
        if (sends) {
            zmq_send(socket, "t", 1, ZMQ_SNDMORE);
            zmq_send(socket, text, (size_t)snprintf(text, sizeof text, "%d", n), 0);
            continue;
        }
        int more = 1;
        size_t size = sizeof more;
        while (more) {
            int length = zmq_recv(socket, text, sizeof text - 1, 0);
            if (length < 0) return 1;
            zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size);
            printf("%.*s%s", length, text, more ? " " : "\n");
        }
        fflush(stdout);
    }
    zmq_close(socket);
    zmq_ctx_term(context); /* waits until all is sent */
    return 0;
}
