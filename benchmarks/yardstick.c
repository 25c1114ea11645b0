/* What rtnetlink costs when nothing else does: the limit that our packing and parsing are measured against.
 *
 *   yardstick install N BATCH FIRST STEP LENGTH GATEWAY DEV   add N routes, BATCH messages a send, a barrier at the end
 *   yardstick lookup N BATCH FIRST STEP                       ask for the route of N addresses
 *   yardstick dump BUFFER                                     read every IPv4 route, BUFFER bytes at a time
 *
 * Prints `WALL CPU DONE REFUSED`: seconds from before the socket is opened to after the last answer, and counts.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { AT_ONCE = 256, ANSWER_BYTES = 1024, QUEUE_BYTES = 64 << 20, OUR_PROTOCOL = 142 };

struct word_attribute {
	struct rtattr head;
	uint32_t value;
};

struct install_request {
	struct nlmsghdr head;
	struct rtmsg route;
	struct word_attribute table, destination, gateway, device;
};

struct lookup_request {
	struct nlmsghdr head;
	struct rtmsg route;
	struct word_attribute destination;
};

static int netlink;
static long done, refused;
static int barrier_passed;
/* Whatever was read goes in here, so that the compiler cannot leave the reading out. */
static volatile uint32_t digest;

static struct mmsghdr arrivals[AT_ONCE];
static struct iovec arrival_vectors[AT_ONCE];
static char arrival_bytes[AT_ONCE][ANSWER_BYTES];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double seconds(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void *reserve(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (!memory)
		die("calloc");
	return memory;
}

static void open_netlink(void)
{
	struct sockaddr_nl everyone = {.nl_family = AF_NETLINK};
	int yes = 1, queue = QUEUE_BYTES;

	netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (netlink < 0)
		die("socket");
	setsockopt(netlink, SOL_NETLINK, NETLINK_CAP_ACK, &yes, sizeof yes);
	/* Room for any batch and for all its answers: this is where the limit needs root. */
	setsockopt(netlink, SOL_SOCKET, SO_SNDBUFFORCE, &queue, sizeof queue);
	setsockopt(netlink, SOL_SOCKET, SO_RCVBUFFORCE, &queue, sizeof queue);
	if (bind(netlink, (struct sockaddr *)&everyone, sizeof everyone) < 0)
		die("bind");
	for (int i = 0; i < AT_ONCE; i++) {
		arrival_vectors[i] = (struct iovec){arrival_bytes[i], ANSWER_BYTES};
		arrivals[i].msg_hdr.msg_iov = &arrival_vectors[i];
		arrivals[i].msg_hdr.msg_iovlen = 1;
	}
}

static void transmit(const void *bytes, size_t length)
{
	if (send(netlink, bytes, length, 0) < 0)
		die("send");
}

/* Look at each attribute once, as anybody must who wants to know the route. */
static void read_route(const struct nlmsghdr *message)
{
	struct rtmsg *route = NLMSG_DATA(message);
	int left = (int)RTM_PAYLOAD(message);
	uint32_t seen = route->rtm_dst_len;

	for (struct rtattr *at = RTM_RTA(route); RTA_OK(at, left); at = RTA_NEXT(at, left))
		switch (at->rta_type) {
		case RTA_DST:
		case RTA_OIF:
		case RTA_GATEWAY:
		case RTA_PRIORITY:
		case RTA_PREFSRC:
		case RTA_TABLE:
			seen ^= *(uint32_t *)RTA_DATA(at);
		}
	digest ^= seen;
	done++;
}

/* Everything that is queued by now; the kernel has answered a whole batch when send() returns. */
static void read_answers(void)
{
	int count;

	while ((count = recvmmsg(netlink, arrivals, AT_ONCE, MSG_DONTWAIT, NULL)) > 0)
		for (int i = 0; i < count; i++) {
			const struct nlmsghdr *answer = (void *)arrival_bytes[i];

			if (answer->nlmsg_type == RTM_NEWROUTE)
				read_route(answer);
			else if (((struct nlmsgerr *)NLMSG_DATA(answer))->error)
				refused++;
			else
				barrier_passed = 1;
		}
	if (count < 0 && errno != EAGAIN)
		die("recvmmsg");
}

static void install(char **words)
{
	uint32_t count = strtoul(words[0], NULL, 0), size = strtoul(words[1], NULL, 0);
	uint32_t first = strtoul(words[2], NULL, 0), step = strtoul(words[3], NULL, 0);
	struct install_request *batch = reserve(size, sizeof *batch);
	struct install_request model = {
		{sizeof model, RTM_NEWROUTE, NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL, 0, 0},
		{.rtm_family = AF_INET, .rtm_dst_len = atoi(words[4]), .rtm_table = RT_TABLE_MAIN,
		 .rtm_protocol = OUR_PROTOCOL, .rtm_scope = RT_SCOPE_UNIVERSE, .rtm_type = RTN_UNICAST},
		{{8, RTA_TABLE}, RT_TABLE_MAIN},
		{{8, RTA_DST}, 0},
		{{8, RTA_GATEWAY}, inet_addr(words[5])},
		{{8, RTA_OIF}, if_nametoindex(words[6])},
	};
	struct nlmsghdr barrier = {sizeof barrier, NLMSG_NOOP, NLM_F_REQUEST | NLM_F_ACK, 0, 0};

	for (uint32_t start = 0; start < count; start += size) {
		uint32_t these = count - start < size ? count - start : size;

		for (uint32_t i = 0; i < these; i++) {
			batch[i] = model;
			batch[i].head.nlmsg_seq = start + i + 1;
			batch[i].destination.value = htonl(first + (start + i) * step);
		}
		transmit(batch, these * sizeof *batch);
		read_answers();
	}
	transmit(&barrier, sizeof barrier);
	read_answers();
	if (!barrier_passed) {
		fprintf(stderr, "answers were lost\n");
		exit(1);
	}
	done = (long)count - refused;
}

static void lookup(char **words)
{
	uint32_t count = strtoul(words[0], NULL, 0), size = strtoul(words[1], NULL, 0);
	uint32_t first = strtoul(words[2], NULL, 0), step = strtoul(words[3], NULL, 0);
	struct lookup_request *batch = reserve(size, sizeof *batch);
	struct lookup_request model = {
		{sizeof model, RTM_GETROUTE, NLM_F_REQUEST, 0, 0},
		{.rtm_family = AF_INET, .rtm_dst_len = 32, .rtm_flags = RTM_F_LOOKUP_TABLE | RTM_F_FIB_MATCH},
		{{8, RTA_DST}, 0},
	};

	for (uint32_t start = 0; start < count; start += size) {
		uint32_t these = count - start < size ? count - start : size;

		for (uint32_t i = 0; i < these; i++) {
			batch[i] = model;
			batch[i].head.nlmsg_seq = start + i + 1;
			batch[i].destination.value = htonl(first + (start + i) * step);
		}
		transmit(batch, these * sizeof *batch);
		read_answers();
	}
}

static void dump(char **words)
{
	size_t size = strtoul(words[0], NULL, 0);
	char *buffer = reserve(1, size);
	struct {
		struct nlmsghdr head;
		struct rtmsg route;
	} request = {{sizeof request, RTM_GETROUTE, NLM_F_REQUEST | NLM_F_DUMP, 1, 0}, {.rtm_family = AF_INET}};

	transmit(&request, sizeof request);
	for (;;) {
		ssize_t received = recv(netlink, buffer, size, MSG_TRUNC);

		if (received < 0 || (size_t)received > size)
			die("recv");
		for (struct nlmsghdr *one = (void *)buffer; NLMSG_OK(one, received); one = NLMSG_NEXT(one, received)) {
			if (one->nlmsg_type == NLMSG_DONE)
				return;
			if (one->nlmsg_type == RTM_NEWROUTE)
				read_route(one);
		}
	}
}

int main(int count, char **words)
{
	double wall, cpu;
	void (*work)(char **) = NULL;

	if (count == 9 && !strcmp(words[1], "install"))
		work = install;
	else if (count == 6 && !strcmp(words[1], "lookup"))
		work = lookup;
	else if (count == 3 && !strcmp(words[1], "dump"))
		work = dump;
	if (!work) {
		fprintf(stderr, "see the first comment of the source for how to call this\n");
		return 2;
	}
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
	open_netlink();
	work(words + 2);
	wall = seconds(CLOCK_MONOTONIC) - wall;
	cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	printf("%.9f %.9f %ld %ld\n", wall, cpu, done, refused);
	return 0;
}
