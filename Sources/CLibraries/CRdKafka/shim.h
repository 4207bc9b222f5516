#pragma once
#include <librdkafka/rdkafka.h>
// In librdkafka's own words experimental; only tests use it.
#include <librdkafka/rdkafka_mock.h>

// The union of `rd_kafka_vu_t` is awkward from Swift, and its variadic twin cannot be imported. Bytes
// are copied. A `key` or `value` of NULL is none; on success `headers` belong to librdkafka.
static inline rd_kafka_error_t *heartline_kafka_produce(
    rd_kafka_t *client, rd_kafka_topic_t *topic, int32_t partition, int64_t timestamp,
    const void *key, size_t key_size, const void *value, size_t value_size,
    rd_kafka_headers_t *headers, void *opaque) {
    rd_kafka_vu_t parts[8];
    size_t count = 0;
    parts[count].vtype = RD_KAFKA_VTYPE_RKT;
    parts[count++].u.rkt = topic;
    parts[count].vtype = RD_KAFKA_VTYPE_PARTITION;
    parts[count++].u.i32 = partition;
    parts[count].vtype = RD_KAFKA_VTYPE_MSGFLAGS;
    parts[count++].u.i = RD_KAFKA_MSG_F_COPY;
    parts[count].vtype = RD_KAFKA_VTYPE_TIMESTAMP;
    parts[count++].u.i64 = timestamp;
    parts[count].vtype = RD_KAFKA_VTYPE_KEY;
    parts[count].u.mem.ptr = (void *)key;
    parts[count++].u.mem.size = key_size;
    parts[count].vtype = RD_KAFKA_VTYPE_VALUE;
    parts[count].u.mem.ptr = (void *)value;
    parts[count++].u.mem.size = value_size;
    parts[count].vtype = RD_KAFKA_VTYPE_OPAQUE;
    parts[count++].u.ptr = opaque;
    if (headers) {
        parts[count].vtype = RD_KAFKA_VTYPE_HEADERS;
        parts[count++].u.headers = headers;
    }
    return rd_kafka_produceva(client, parts, count);
}

// Variadic.
static inline rd_kafka_resp_err_t heartline_kafka_mock_delay(
    rd_kafka_mock_cluster_t *cluster, int32_t broker, int16_t api, rd_kafka_resp_err_t error,
    int milliseconds) {
    return rd_kafka_mock_broker_push_request_error_rtts(cluster, broker, api, 1, error, milliseconds);
}
