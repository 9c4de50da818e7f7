// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Large messages of a reliable connection, byte by byte: what arrives, in which order it shows, and which completions there are. It knows nothing of
 * paths, so it says the same whatever a queue pair has of them.
 *
 *   paths DEVICE GID_INDEX PORT            serves one client
 *   paths DEVICE GID_INDEX PORT ADDRESS    runs all checks
 *
 * The client tells the server over TCP what to do, and the server answers when it has done it.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

enum { MIB = 1 << 20, LARGEST = 8 * MIB, BYTES = 2 * LARGEST + 4096, WRS = 32, FLAG = BYTES - 8 };

/* What a side tells of itself. */
struct side {
	uint64_t addr;
	uint32_t rkey, qpn;
	union ibv_gid gid;
};

enum action { FILL, EXPECT, RECV, RECEIVED, SPIN, RECONNECT, END };

struct order {
	uint32_t action, offset, length, seed, imm;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static struct ibv_qp_cap cap = { WRS, WRS, 4, 4, 64 };
static struct side self, peer;
static int gid_index, tcp;
static unsigned char *memory;

static void tell(const void *data, size_t bytes)
{
	CHECK(send(tcp, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

static void hear(void *data, size_t bytes)
{
	CHECK(recv(tcp, data, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

static unsigned char byte_of(uint32_t seed, uint32_t index)
{
	uint32_t x = seed * 2654435761u + (index >> 2) * 40503u;

	return (x ^ x >> 13) >> 8 * (index & 3);
}

static void fill(uint32_t offset, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++)
		memory[offset + i] = byte_of(seed, i);
}

static void expect(uint32_t offset, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++) {
		if (memory[offset + i] != byte_of(seed, i)) {
			fprintf(stderr, "%u bytes of seed %u at %u: byte %u is wrong\n", length, seed, offset, i);
			exit(1);
		}
	}
}

static void to_state(enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {
		.qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer.qpn,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.max_dest_rd_atomic = 4, .max_rd_atomic = 4, .min_rnr_timer = 12,
		.timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer.gid, .sgid_index = gid_index, .hop_limit = 64 } },
	};
	int masks[] = {
		[IBV_QPS_RESET] = 0,
		[IBV_QPS_INIT] = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
		[IBV_QPS_RTR] = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
		[IBV_QPS_RTS] = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				IBV_QP_MAX_QP_RD_ATOMIC,
	};

	errno = ibv_modify_qp(qp, &attr, masks[state] | IBV_QP_STATE);
	CHECK(!errno);
}

/* Both sides call it; when it returns, both can send. */
static void connect_qp(void)
{
	char ready = 1;

	for (enum ibv_qp_state state = IBV_QPS_RESET; state <= IBV_QPS_RTS; state++)
		to_state(state);
	tell(&ready, 1);
	hear(&ready, 1);
}

static void set_up(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	CHECK(context && !ibv_query_gid(context, 1, gid_index, &self.gid));
	CHECK(!posix_memalign((void **)&memory, 4096, BYTES));
	memset(memory, 0, BYTES);
	CHECK((pd = ibv_alloc_pd(context)) && (channel = ibv_create_comp_channel(context)));
	/* As many completions as there can be requests: one more would break it. */
	CHECK((cq = ibv_create_cq(context, 2 * WRS, NULL, channel, 0)));
	mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(mr);
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = IBV_QPT_RC };
	CHECK((qp = ibv_create_qp(pd, &attr)));
	cap = attr.cap;
	self = (struct side){ (uintptr_t)memory, mr->rkey, qp->qp_num, self.gid };
	tell(&self, sizeof(self));
	hear(&peer, sizeof(peer));
	connect_qp();
}

static struct ibv_wc complete(void)
{
	struct ibv_wc wc;
	double end = now() + 60;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(now() < end);
	CHECK(count == 1);
	return wc;
}

static struct ibv_wc succeed(uint64_t id)
{
	struct ibv_wc wc = complete();

	if (wc.status || wc.wr_id != id)
		fprintf(stderr, "%s (%u) of %lu, not success of %lu\n", ibv_wc_status_str(wc.status), wc.vendor_err,
			wc.wr_id, id);
	CHECK(!wc.status && wc.wr_id == id);
	return wc;
}

/* ---- The server ---- */

static void receive(const struct order *o)
{
	/* In two parts, so that nothing of the message ends where its parts do. */
	uint32_t first = o->length / 3;
	struct ibv_sge sges[] = { { (uintptr_t)memory + o->offset, first, mr->lkey },
				  { (uintptr_t)memory + o->offset + first, o->length - first, mr->lkey } };
	struct ibv_recv_wr wr = { .wr_id = o->seed, .sg_list = sges + !first, .num_sge = 2 - !first }, *bad;

	errno = ibv_post_recv(qp, &wr, &bad);
	CHECK(!errno);
}

static void serve(void)
{
	for (struct order o;;) {
		struct ibv_wc wc;

		hear(&o, sizeof(o));
		switch (o.action) {
		case FILL:
			fill(o.offset, o.length, o.seed);
			break;
		case EXPECT:
			expect(o.offset, o.length, o.seed);
			break;
		case RECV:
			receive(&o);
			break;
		case RECEIVED:
			wc = succeed(o.seed);
			CHECK(wc.byte_len == o.length && wc.opcode & IBV_WC_RECV);
			CHECK(o.imm ? wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == o.imm : !wc.wc_flags);
			expect(o.offset, o.length, o.seed);
			break;
		case SPIN:
			for (double end = now() + 60; *(volatile uint64_t *)(memory + FLAG) != o.seed;)
				CHECK(now() < end);
			__sync_synchronize();
			expect(o.offset, o.length, o.seed);
			break;
		case RECONNECT:
			connect_qp();
			continue;
		case END:
			return;
		}
		tell(&(char){ 1 }, 1);
	}
}

/* ---- The client ---- */

static void begin(enum action action, uint32_t offset, uint32_t length, uint32_t seed, uint32_t imm)
{
	struct order o = { action, offset, length, seed, imm };

	tell(&o, sizeof(o));
}

static void answered(void)
{
	char done;

	hear(&done, 1);
}

static void ask(enum action action, uint32_t offset, uint32_t length, uint32_t seed)
{
	begin(action, offset, length, seed, 0);
	answered();
}

struct request {
	struct ibv_send_wr wr;
	struct ibv_sge sges[3];
};

/* A request for bytes here and there; its data is in three pieces if it is large. */
static struct request *request(struct request *r, enum ibv_wr_opcode opcode, uint64_t id, uint32_t here,
			       uint32_t there, uint32_t length)
{
	uint32_t a = length > 1000 ? length / 7 : length, b = length > 1000 ? 2 : 0;

	*r = (struct request){
		.wr = { .wr_id = id, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED, .sg_list = r->sges,
			.num_sge = length > 1000 ? 3 : 1, .wr.rdma = { peer.addr + there, peer.rkey } },
		.sges = { { (uintptr_t)memory + here, a, mr->lkey },
			  { (uintptr_t)memory + here + a, b, mr->lkey },
			  { (uintptr_t)memory + here + a + b, length - a - b, mr->lkey } },
	};
	return r;
}

static int post(struct request *r, int count)
{
	struct ibv_send_wr *bad;

	for (int i = 0; i + 1 < count; i++)
		r[i].wr.next = &r[i + 1].wr;
	return errno = ibv_post_send(qp, &r->wr, &bad);
}

static const uint32_t SIZES[] = { 1, 4096, 131071, 131072, 131073, 135169, 200001, MIB - 1, MIB, 3 * MIB + 777, LARGEST };

static void every_size_arrives(void)
{
	static uint32_t seed = 100;
	struct request r;

	for (unsigned i = 0; i < sizeof(SIZES) / sizeof(*SIZES); i++) {
		uint32_t length = SIZES[i], odd = i * 3;

		fill(0, length, ++seed);
		CHECK(!post(request(&r, IBV_WR_RDMA_WRITE, seed, 0, odd, length), 1));
		succeed(seed);
		ask(EXPECT, odd, length, seed);

		ask(FILL, odd, length, ++seed);
		CHECK(!post(request(&r, IBV_WR_RDMA_READ, seed, LARGEST, odd, length), 1));
		CHECK(succeed(seed).byte_len == length);
		expect(LARGEST, length, seed);

		for (uint32_t imm = 0; imm < 2; imm++) {
			fill(0, length, ++seed);
			ask(RECV, odd, length, seed);
			request(&r, imm ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND, seed, 0, 0, length);
			r.wr.imm_data = imm;
			CHECK(!post(&r, 1));
			succeed(seed);
			begin(RECEIVED, odd, length, seed, imm);
			answered();
		}
		fill(0, length, ++seed);
		ask(RECV, 0, 16, seed);
		request(&r, IBV_WR_RDMA_WRITE_WITH_IMM, seed, 0, odd, length);
		r.wr.imm_data = 77;
		CHECK(!post(&r, 1));
		succeed(seed);
		begin(RECEIVED, odd, length, seed, 77);
		answered();
	}
}

/* A small write that is posted behind a large one shows after all of it. */
static void data_is_there_when_its_flag_is(void)
{
	for (uint32_t seed = 1; seed <= 40; seed++) {
		struct request r[2];
		uint32_t length = MIB + seed * 1000;

		fill(0, length, seed);
		*(uint64_t *)(memory + FLAG) = seed;
		begin(SPIN, seed, length, seed, 0);
		request(&r[0], IBV_WR_RDMA_WRITE, 1, 0, seed, length)->wr.send_flags = 0;
		request(&r[1], IBV_WR_RDMA_WRITE, 2, FLAG, FLAG, 8);
		CHECK(!post(r, 2));
		succeed(2);
		answered();
	}
}

/* Many at once: completions in order; onto one place, the last one stays. */
static void requests_complete_and_take_effect_in_order(void)
{
	struct request r[WRS];

	for (int round = 0; round < 4; round++) {
		for (int i = 0; i < WRS; i++) {
			uint32_t seed = 1000 + round * WRS + i;

			/* Parts of one pattern each, since it is sent when it is. */
			fill(i * 400000, 400000, seed);
			request(&r[i], IBV_WR_RDMA_WRITE, seed, i * 400000, 5, i % 3 ? 400000 : 300000 + i);
			r[i].wr.send_flags = i % 2 ? IBV_SEND_SIGNALED : 0;
		}
		CHECK(!post(r, WRS));
		for (int i = 1; i < WRS; i += 2)
			succeed(1000 + round * WRS + i);
		ask(EXPECT, 5, 400000, 1000 + round * WRS + WRS - 1);
	}
	/* Written, read back, and written elsewhere when it has been read, all posted at once. */
	fill(0, MIB + 1, 5000);
	memset(memory + LARGEST, 0, MIB + 1);
	request(&r[0], IBV_WR_RDMA_WRITE, 1, 0, 0, MIB + 1);
	request(&r[1], IBV_WR_RDMA_READ, 2, LARGEST, 0, MIB + 1);
	request(&r[2], IBV_WR_RDMA_WRITE, 3, LARGEST, LARGEST, MIB + 1)->wr.send_flags |= IBV_SEND_FENCE;
	CHECK(!post(r, 3));
	for (uint64_t id = 1; id <= 3; id++)
		succeed(id);
	ask(EXPECT, LARGEST, MIB + 1, 5000);
}

static void an_event_comes_when_it_is_done(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	struct request r;
	struct ibv_cq *of;
	void *unused;

	for (int i = 0; i < 10; i++) {
		CHECK(!ibv_req_notify_cq(cq, 0));
		CHECK(!post(request(&r, IBV_WR_RDMA_WRITE, i, 0, 0, LARGEST), 1));
		CHECK(poll(&fd, 1, 60000) == 1);
		CHECK(!ibv_get_cq_event(channel, &of, &unused) && of == cq);
		ibv_ack_cq_events(cq, 1);
		succeed(i);
	}
}

/* No more and no fewer requests than the queue pair was said to take. */
static void the_queue_holds_what_it_promised(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct request r;
	uint32_t posted = 0;

	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
	CHECK(init.cap.max_send_wr == cap.max_send_wr && attr.cap.max_send_wr == cap.max_send_wr);
	while (!post(request(&r, posted % 3 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, posted, 0, 0, MIB), 1))
		posted++;
	CHECK(errno == ENOMEM && posted == cap.max_send_wr);
	for (uint32_t i = 0; i < posted; i++)
		succeed(i);
}

/*
 * A request that fails, and those behind it: each has one completion. With several paths it can overtake requests before it, one of which then tells
 * of the failure. Afterwards the queue pair can be used again.
 */
static void one_completion_tells_of_each_failure(void)
{
	for (int opcode = 0; opcode < 2; opcode++) {
		struct request r[6];
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;
		struct ibv_wc wc;

		for (int i = 0; i < 6; i++)
			request(&r[i], opcode ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, i, 0, 0, i == 4 ? 8 : 2 * MIB);
		/* Its end lies outside of the region. */
		r[2].wr.wr.rdma.remote_addr = peer.addr + BYTES - MIB;
		for (int i = 2; i < 6; i++)
			r[i].wr.send_flags = 0;
		CHECK(!post(r, 6));
		for (uint64_t i = 0, failed = 0; i < 6; i++) {
			wc = complete();
			if (wc.wr_id != i)
				fprintf(stderr, "completion of %lu, not of %lu\n", wc.wr_id, i);
			CHECK(wc.wr_id == i);
			if (failed) {
				CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
			} else if (wc.status || i == 2) {
				CHECK(wc.status == IBV_WC_REM_ACCESS_ERR);
				failed = 1;
			}
		}
		CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
		/* What is posted now is flushed, too. */
		CHECK(!post(request(&r[0], IBV_WR_RDMA_WRITE, 9, 0, 0, 2 * MIB), 1));
		CHECK(complete().status == IBV_WC_WR_FLUSH_ERR);
		usleep(200000);
		CHECK(!ibv_poll_cq(cq, 1, &wc));

		begin(RECONNECT, 0, 0, 0, 0);
		connect_qp();
		every_size_arrives();
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	CHECK(argc == 4 || argc == 5);
	gid_index = atoi(argv[2]);
	at.sin_port = htons(atoi(argv[3]));
	if (argc == 4) {
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		CHECK(!bind(listener, (struct sockaddr *)&at, sizeof(at)) && !listen(listener, 1));
		CHECK((tcp = accept(listener, NULL, NULL)) >= 0);
		set_up(argv[1]);
		serve();
		return 0;
	}
	CHECK(inet_pton(AF_INET, argv[4], &at.sin_addr) == 1);
	CHECK((tcp = listener) >= 0 && !connect(tcp, (struct sockaddr *)&at, sizeof(at)));
	set_up(argv[1]);
	every_size_arrives();
	data_is_there_when_its_flag_is();
	requests_complete_and_take_effect_in_order();
	an_event_comes_when_it_is_done();
	the_queue_holds_what_it_promised();
	one_completion_tells_of_each_failure();
	begin(END, 0, 0, 0, 0);
	printf("all checks passed\n");
	return 0;
}
