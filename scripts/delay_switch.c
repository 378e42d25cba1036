/* A switch that holds every frame back for as long as two links are long, for kernels without netem.
 *
 *     delay_switch h0:10 h1:0 h2:25 0-2:40      run inside the hub's namespace: ports and their one-way delays in ms,
 *                                               then those that a pair of ports has beyond both
 *
 * A frame from port a to port b leaves a's delay + b's delay + that of their pair after it came. The last two bytes of a destination
 * address 02:88:00:00:xx:xx are its port; all other frames (ARP) go to every port. Frames carry their offload header
 * (virtio_net_hdr) in and out, so that a segment of 64 KiB stays one frame and costs one call each way. Frames leave
 * through the port's queueing discipline: the peer's download rate applies, and what that refuses is lost, as on a
 * real link. Prints "ready", and ends when its input does.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_PORTS = 256,
    OFFLOAD_BYTES = sizeof(struct virtio_net_hdr),
    MAX_FRAME_BYTES = OFFLOAD_BYTES + 65536 + ETH_HLEN,
    SOCKET_BYTES = 32 << 20, /* holds a burst while we serve other ports */
    BATCH = 32,              /* frames taken from one port before the next one has its turn */
};

struct frame {
    int64_t due_ns;
    uint64_t number; /* frames due at the same time leave in the order in which they came */
    int port;
    int num_bytes;
    uint8_t bytes[];
};

static struct {
    struct frame **frames;
    size_t count, room;
    uint64_t next_number;
} heap;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static bool leaves_before(const struct frame *a, const struct frame *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void push(struct frame *frame) {
    if (heap.count == heap.room) {
        heap.room = heap.room ? 2 * heap.room : 1024;
        heap.frames = realloc(heap.frames, heap.room * sizeof *heap.frames);
        if (!heap.frames) die("realloc");
    }
    size_t at = heap.count++;
    for (; at && leaves_before(frame, heap.frames[(at - 1) / 2]); at = (at - 1) / 2)
        heap.frames[at] = heap.frames[(at - 1) / 2];
    heap.frames[at] = frame;
}

static struct frame *pop(void) {
    struct frame *first = heap.frames[0], *moved = heap.frames[--heap.count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < heap.count; at = child) {
        if (child + 1 < heap.count && leaves_before(heap.frames[child + 1], heap.frames[child])) child++;
        if (!leaves_before(heap.frames[child], moved)) break;
        heap.frames[at] = heap.frames[child];
    }
    heap.frames[at] = moved;
    return first;
}

static void hold(const uint8_t *bytes, int num_bytes, int port, int64_t due_ns) {
    struct frame *frame = malloc(sizeof *frame + num_bytes);
    if (!frame) die("malloc");
    frame->due_ns = due_ns;
    frame->number = heap.next_number++;
    frame->port = port;
    frame->num_bytes = num_bytes;
    memcpy(frame->bytes, bytes, num_bytes);
    push(frame);
}

static int open_port(const char *name) {
    int on = 1, room = SOCKET_BYTES;
    int port = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* deaf until it is bound */
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(name)};
    if (port < 0 || !address.sll_ifindex) die(name);
    if (setsockopt(port, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof on)
        || setsockopt(port, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on)
        || setsockopt(port, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room)
        || setsockopt(port, SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room)
        || bind(port, (struct sockaddr *)&address, sizeof address))
        die(name);
    return port;
}

static int destination(const uint8_t *ethernet, int num_ports) {
    static const uint8_t ours[] = {0x02, 0x88, 0x00, 0x00};
    if (memcmp(ethernet, ours, sizeof ours)) return -1;
    int port = ethernet[4] << 8 | ethernet[5];
    return port < num_ports ? port : -1;
}

int main(int argc, char **argv) {
    static struct pollfd watched[MAX_PORTS + 1];
    static int64_t delay_ns[MAX_PORTS], pair_ns[MAX_PORTS][MAX_PORTS];
    static uint8_t buffer[MAX_FRAME_BYTES];
    int num_ports = 0, one, other;
    double pair_ms;
    while (num_ports < argc - 1 && !isdigit((unsigned char)argv[num_ports + 1][0])) num_ports++;
    if (num_ports < 1 || num_ports > MAX_PORTS) {
        fprintf(stderr, "expected 1 to %d ports as name:delay_ms\n", MAX_PORTS);
        return 2;
    }
    for (int pair = num_ports + 1; pair < argc; pair++) {
        if (sscanf(argv[pair], "%d-%d:%lf", &one, &other, &pair_ms) != 3 || one < 0 || other < 0 || one >= num_ports
            || other >= num_ports) {
            fprintf(stderr, "%s is no pair of ports as port-port:delay_ms\n", argv[pair]);
            return 2;
        }
        pair_ns[one][other] = pair_ns[other][one] = (int64_t)(pair_ms * 1e6);
    }
    for (int port = 0; port < num_ports; port++) {
        char *colon = strchr(argv[port + 1], ':');
        if (colon) {
            *colon = 0;
            delay_ns[port] = (int64_t)(atof(colon + 1) * 1e6);
        }
        watched[port] = (struct pollfd){.fd = open_port(argv[port + 1]), .events = POLLIN};
    }
    watched[num_ports] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    setpriority(PRIO_PROCESS, 0, -15); /* a link does not wait for a core; without the right to it, it does */
    puts("ready");
    fflush(stdout);

    for (;;) {
        int64_t now = now_ns();
        while (heap.count && heap.frames[0]->due_ns <= now) {
            struct frame *frame = pop();
            if (send(watched[frame->port].fd, frame->bytes, frame->num_bytes, 0) < 0 && errno != ENOBUFS
                && errno != EAGAIN)
                perror("send");
            free(frame);
        }
        int64_t wait_ns = heap.count ? heap.frames[0]->due_ns - now_ns() : INT64_C(1000000000);
        if (wait_ns < 0) wait_ns = 0;
        struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
        if (ppoll(watched, num_ports + 1, &wait, NULL) < 0) {
            if (errno == EINTR) continue;
            die("ppoll");
        }
        if (watched[num_ports].revents && read(STDIN_FILENO, buffer, sizeof buffer) <= 0) return 0;
        now = now_ns();
        for (int from = 0; from < num_ports; from++) {
            if (!(watched[from].revents & POLLIN)) continue;
            for (int taken = 0; taken < BATCH; taken++) {
                int num_bytes = recv(watched[from].fd, buffer, sizeof buffer, 0);
                if (num_bytes < OFFLOAD_BYTES + ETH_HLEN) break;
                int to = destination(buffer + OFFLOAD_BYTES, num_ports);
                for (int port = to < 0 ? 0 : to; port < (to < 0 ? num_ports : to + 1); port++)
                    if (port != from) hold(buffer, num_bytes, port, now + delay_ns[from] + delay_ns[port] + pair_ns[from][port]);
            }
        }
    }
}
